// The lock of a namespace's owner.
#include "fs/ownership.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include <cerrno>

#include "fs/file.hpp"

namespace kvfs::fs {

namespace {

constexpr const char* kName = "kvfs.lock";
constexpr std::int64_t kConfirmedMs = 50;

struct flock first_byte(short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

// From now on others see that somebody shares.
void share(const Fd& file) {
  struct flock lock = first_byte(F_RDLCK);
  (void)::fcntl(file.get(), F_OFD_SETLK, &lock);
}

bool anybody_shares(const Fd& file) {
  struct flock lock = first_byte(F_WRLCK);
  // What cannot be told may be.
  return ::fcntl(file.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool removed(const Fd& file) {
  struct stat status;
  return ::fstat(file.get(), &status) != 0 || status.st_nlink == 0;
}

std::int64_t now_ms() {
  struct timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

}  // namespace

Status Ownership::acquire(const Directory& directory, Sharing wanted) {
  constexpr int kFlags = O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = Fd(::openat(directory.at(), kName, kFlags, kFileMode));
  Status status = file_.valid() ? Status::success() : Status::from_errno("open kvfs.lock");
  if (status.ok() && wanted != Sharing::kShared) {
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0)
      status = Status::failure(errno == EWOULDBLOCK ? EBUSY : errno, "lock");
    if (status.ok() && anybody_shares(file_)) {
      (void)::flock(file_.get(), LOCK_UN);
      status = Status::failure(EBUSY, "lock");
    }
    if (status.ok()) {
      owner_ = true;
      confirmed_ms_ = now_ms();
      return status;
    }
  }
  if (wanted == Sharing::kOwner) {
    release();
    return status;
  }
  if (file_.valid()) share(file_);
  return Status::success();
}

bool Ownership::confirm() {
  if (!owner()) return false;
  const std::int64_t moment_ms = now_ms();
  if (moment_ms - confirmed_ms_.load(std::memory_order_relaxed) <= kConfirmedMs) return true;
  const std::lock_guard lock(mutex_);
  if (!owner()) return false;
  if (anybody_shares(file_) || removed(file_)) {
    become_shared();
    return false;
  }
  confirmed_ms_.store(moment_ms, std::memory_order_relaxed);
  return true;
}

void Ownership::give_up() {
  const std::lock_guard lock(mutex_);
  if (owner()) become_shared();
}

void Ownership::become_shared() {
  owner_ = false;
  share(file_);
  (void)::flock(file_.get(), LOCK_UN);
}

void Ownership::release() {
  const std::lock_guard lock(mutex_);
  owner_ = false;
  file_ = Fd();
}

}  // namespace kvfs::fs
