// An open directory that paths are relative to.
#include "fs/directory.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fs/file.hpp"

namespace kvfs::fs {

namespace {

constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

Status make_and_open(const std::string& path, mode_t mode, Fd& fd) {
  bool made = false;
  if (const Status status = make_directories(AT_FDCWD, path, mode, made); !status.ok()) return status;
  fd = Fd(::open(path.c_str(), kFlags));
  return fd.valid() ? Status::success() : Status::from_errno("open");
}

// The umask can be read only by changing it, or here. Where that is not mounted it is taken for a hindrance.
bool umask_takes(mode_t mode) {
  const Fd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  std::array<char, 512> text{};
  if (!file.valid() || ::read(file.get(), text.data(), text.size() - 1) <= 0) return true;
  const char* const found = std::strstr(text.data(), "\nUmask:");
  return found == nullptr || (std::strtoul(found + 7, nullptr, 8) & mode) != 0;
}

bool removed(const Fd& fd) {
  struct stat status;
  return ::fstat(fd.get(), &status) == 0 && status.st_nlink == 0;
}

}  // namespace

Status Directory::open(std::string path, Modes modes) {
  path_ = std::move(path);
  modes_ = modes;
  if (const Status opened = make_and_open(path_, modes_.directory, fd_); !opened.ok()) return opened;
  modes_.umask_interferes = umask_takes(modes_.file);
  return Status::success();
}

std::string Directory::path_of(const std::string& relative) const {
  return path_.empty() ? relative : path_ + '/' + relative;
}

void Directory::make_room_for_descriptors(int count) const {
  // A number beyond the process's limit is refused, and then the table stays as it is.
  const Fd last(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, count));
}

bool Directory::restore_if_removed(std::uint64_t restorations_before) {
  if (!fd_.valid()) return false;
  if (!removed(fd_)) {
    const std::uint64_t restorations_now = restorations();
    return restorations_now != restorations_before || restorations_now % 2 == 1;
  }
  const std::lock_guard lock(restoring_);
  // Another thread may have done it while this one waited.
  if (!removed(fd_)) return true;
  Fd fresh;
  if (!make_and_open(path_, modes_.directory, fresh).ok()) return false;
  restorations_.fetch_add(1);
  const bool opened = ::dup3(fresh.get(), fd_.get(), O_CLOEXEC) >= 0;
  restorations_.fetch_add(1);
  return opened;
}

}  // namespace kvfs::fs
