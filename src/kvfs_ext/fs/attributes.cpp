// Extended attributes of files.
#include "fs/attributes.hpp"

#include <sys/xattr.h>

#include <array>
#include <cerrno>

#include "fs/file.hpp"

namespace kvfs::fs {

Status set_attribute(const Fd& file, const char* name, std::span<const std::byte> value) {
  return ::fsetxattr(file.get(), name, value.data(), value.size(), 0) == 0 ? Status::success()
                                                                           : Status::from_errno("setxattr");
}

Status get_attribute(const Fd& file, const char* name, std::span<std::byte> value, std::size_t& size_bytes) {
  const ssize_t got = ::fgetxattr(file.get(), name, value.data(), value.size());
  if (got < 0 && errno == EOPNOTSUPP) return Status::failure(ENODATA, "getxattr");
  if (got < 0 && errno != ERANGE) return Status::from_errno("getxattr");
  size_bytes = got < 0 ? value.size() + 1 : static_cast<std::size_t>(got);
  return Status::success();
}

Status probe_attributes(const Directory& directory, const std::string& temporary, const char* name) {
  constexpr std::array<std::byte, 4> kValue{};
  DirectPolicy buffered(false);
  File file;
  if (create_exclusive(directory.at(), temporary, Naming::kNamed, directory.modes(), kValue, buffered, file)
          .ok()) {
    const Status set = set_attribute(file.fd, name, kValue);
    (void)remove(directory.at(), temporary);
    return set;
  }
  std::array<std::byte, 4> value;
  const Fd opened(::openat(directory.at(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const ssize_t got = ::fgetxattr(opened.get(), name, value.data(), value.size());
  return got >= 0 || errno == ENODATA || errno == ERANGE ? Status::success() : Status::from_errno("getxattr");
}

}  // namespace kvfs::fs
