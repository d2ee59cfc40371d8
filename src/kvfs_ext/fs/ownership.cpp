// The lock of a namespace's owner.
#include "fs/ownership.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fs/file.hpp"

namespace kvfs::fs {

namespace {

constexpr const char* kName = "kvfs.lock";
constexpr std::int64_t kConfirmedMs = 50;

struct flock byte_at(off_t offset, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = offset;
  lock.l_len = 1;
  return lock;
}

struct flock first_byte(short type) { return byte_at(0, type); }

// Far more bytes than any file has; locks need none.
struct flock byte_of(std::uint64_t writer, short type) {
  return byte_at(static_cast<off_t>(2 + writer / 4), type);
}

bool anybody_shares(const Fd& file) {
  struct flock lock = first_byte(F_WRLCK);
  // What cannot be told may be.
  return ::fcntl(file.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

// One byte longer. Where that does not work, the lock still tells.
void grow(const Directory& directory) {
  const Fd file(::openat(directory.at(), kName, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status;
  if (!file.valid() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  (void)(::ftruncate(file.get(), status.st_size + 1) == 0);
}

Fd open_file(const Directory& directory) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  Fd made(::openat(directory.at(), kName, kFlags | O_CREAT | O_EXCL, directory.modes().file));
  if (made.valid()) (void)give_mode(made, directory.modes());
  // Again with O_CREAT: a directory that lies there would open for reading without.
  return made.valid() ? std::move(made)
                      : Fd(::openat(directory.at(), kName, kFlags | O_CREAT, directory.modes().file));
}

std::int64_t now_ms() {
  struct timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1000 + time.tv_nsec / 1'000'000;
}

}  // namespace

Status Ownership::acquire(const Directory& directory, Sharing wanted, std::uint64_t writer) {
  directory_ = &directory;
  writer_ = writer;
  Status status;
  if (wanted != Sharing::kShared) {
    file_ = open_file(directory);
    if (!file_.valid()) status = Status::from_errno("open kvfs.lock");
    if (status.ok() && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0)
      status = Status::failure(errno == EWOULDBLOCK ? EBUSY : errno, "lock");
    struct stat found;
    if (status.ok() && ::fstat(file_.get(), &found) != 0) status = Status::from_errno("stat");
    if (status.ok() && anybody_shares(file_)) status = Status::failure(EBUSY, "lock");
    if (status.ok()) {
      announce();
      size_bytes_ = found.st_size;
      confirmed_ms_ = now_ms();
      owner_ = true;
      return status;
    }
    unlock();
  }
  if (wanted == Sharing::kOwner) return status;
  share();
  return Status::success();
}

bool Ownership::confirm() {
  if (!owner()) return false;
  return now_ms() - confirmed_ms_.load(std::memory_order_relaxed) <= kConfirmedMs || confirm_now();
}

bool Ownership::confirm_now() {
  const std::int64_t moment_ms = now_ms();
  const std::lock_guard lock(mutex_);
  if (!owner()) return false;
  struct stat found;
  const bool same = ::fstat(file_.get(), &found) == 0 && found.st_nlink > 0 && found.st_size == size_bytes_;
  if (!same || anybody_shares(file_)) {
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
  Fd owned = std::move(file_);
  // Before the other place is given up, so that nobody finds both free; and in the file that has the name
  // now.
  share();
  std::swap(owned, file_);
  unlock();
  file_ = std::move(owned);
}

void Ownership::share() {
  file_ = open_file(*directory_);
  if (!file_.valid()) return;
  struct flock lock = first_byte(F_RDLCK);
  (void)::fcntl(file_.get(), F_OFD_SETLK, &lock);
  announce();
  grow(*directory_);
}

void Ownership::announce() {
  struct flock lock = byte_of(writer_, F_RDLCK);
  (void)::fcntl(file_.get(), F_OFD_SETLK, &lock);
}

bool Ownership::is_alive(std::uint64_t writer) {
  const std::lock_guard lock(mutex_);
  struct flock found = byte_of(writer, F_WRLCK);
  return writer == writer_ || !file_.valid() || ::fcntl(file_.get(), F_OFD_GETLK, &found) != 0 ||
         found.l_type != F_UNLCK;
}

// By hand: a forked child has the same open file description and would keep its locks.
void Ownership::unlock() {
  if (!file_.valid()) return;
  // To the end: all of them.
  struct flock lock = first_byte(F_UNLCK);
  lock.l_len = 0;
  (void)::flock(file_.get(), LOCK_UN);
  (void)::fcntl(file_.get(), F_OFD_SETLK, &lock);
  file_ = Fd();
}

void Ownership::release() {
  const std::lock_guard lock(mutex_);
  owner_ = false;
  unlock();
}

bool is_unused(int directory) {
  const Fd file(::openat(directory, kName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid() || ::flock(file.get(), LOCK_EX | LOCK_NB) != 0) return false;
  const bool unused = !anybody_shares(file);
  (void)::flock(file.get(), LOCK_UN);
  return unused;
}

}  // namespace kvfs::fs
