// Whether io_uring really works here.
#include "fs/ring_probe.hpp"

#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

#include "fs/file.hpp"
#include "fs/ring.hpp"

namespace kvfs::fs {

namespace {

constexpr std::size_t kPageSize = 4096;
using Page = std::array<std::byte, kPageSize>;

Status read_through_ring(int at, const std::string& path, Page& page, DirectPolicy& direct) {
  Ring ring;
  if (const Status created = Ring::create(1, {page, kPageSize}, nullptr, ring); !created.ok()) return created;
  File file;
  if (const Status opened = open_existing(at, path, page, direct, file); !opened.ok()) return opened;
  if (!ring.queue(Ring::Direction::kRead, file.fd.get(), page, 0, 0))
    return Status::failure(EIO, "io_uring read");
  if (const Status submitted = ring.submit(1); !submitted.ok()) return submitted;
  Ring::Completion completion;
  while (!ring.take(completion)) {
    if (const Status waited = ring.submit(1); !waited.ok()) return waited;
  }
  if (completion.result < 0) return Status::failure(-completion.result, "io_uring read");
  return completion.result == static_cast<int>(kPageSize) ? Status::success()
                                                          : Status::failure(EIO, "io_uring read");
}

}  // namespace

Status probe_ring(const Directory& directory, const std::string& temporary, bool use_o_direct) {
  struct statfs file_system;
  if (::fstatfs(directory.at(), &file_system) != 0) return Status::from_errno("statfs");
  if (file_system.f_type == FUSE_SUPER_MAGIC) return Status::failure(EOPNOTSUPP, "io_uring on FUSE");
  alignas(kPageSize) Page written;
  alignas(kPageSize) Page read{};
  for (std::size_t i = 0; i < kPageSize; ++i) written[i] = static_cast<std::byte>(i * 37 + 11);
  DirectPolicy direct(use_o_direct);
  File file;
  Status status =
      create_exclusive(directory.at(), temporary, Naming::kNamed, directory.modes(), written, direct, file);
  if (!status.ok()) return status;
  status = write_all(file, written, direct);
  if (const Status closed = file.fd.close(); status.ok()) status = closed;
  if (status.ok()) status = read_through_ring(directory.at(), temporary, read, direct);
  if (status.ok() && written != read) status = Status::failure(EIO, "io_uring read");
  if (const Status removed = remove(directory.at(), temporary); status.ok()) status = removed;
  return status;
}

}  // namespace kvfs::fs
