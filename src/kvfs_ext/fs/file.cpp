// The system calls that kvfs makes on files.
#include "fs/file.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace kvfs::fs {

namespace {

// How often a directory that somebody else removes meanwhile is made again.
constexpr int kDirectoryTries = 16;

// Some device wants no more than this, and none more than that.
constexpr std::uintptr_t kAlignmentMin = 512;
constexpr std::uintptr_t kAlignmentMax = 4096;

bool aligned(std::span<const std::byte> bytes, std::uintptr_t alignment) {
  return (reinterpret_cast<std::uintptr_t>(bytes.data()) | bytes.size()) % alignment == 0;
}

int open_once(int at, const std::string& path, int flags, mode_t mode) {
  return ::openat(at, path.c_str(), flags | O_CLOEXEC, mode);
}

// What openat2 does, one directory after the other.
int open_stepwise(int at, const std::string& path, int flags, mode_t mode) {
  constexpr int kStepFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW;
  const bool makes_nameless = (flags & O_TMPFILE) == O_TMPFILE;
  Fd parent;
  std::size_t begin = 0;
  for (std::size_t slash; (slash = path.find('/', begin)) != std::string::npos; begin = slash + 1) {
    const int above = parent.valid() ? parent.get() : at;
    const std::string name = path.substr(begin, slash - begin);
    Fd next(open_once(above, name, kStepFlags, 0));
    if (!next.valid()) {
      struct stat found;
      const int error = errno;
      const bool is_link =
          ::fstatat(above, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode);
      errno = is_link ? ELOOP : error;
      return -1;
    }
    parent = std::move(next);
  }
  const int number = open_once(parent.valid() ? parent.get() : at, path.substr(begin),
                               flags | (makes_nameless ? 0 : O_NOFOLLOW), mode);
  return number;
}

// Old kernels do not know openat2, and some sandboxes do not let it through.
std::atomic<bool> has_openat2{true};

int open_beneath(int at, const std::string& path, int flags, mode_t mode) {
  if (has_openat2.load(std::memory_order_relaxed)) {
    struct open_how how{};
    how.flags = static_cast<std::uint64_t>(flags | O_CLOEXEC);
    how.mode = mode;
    how.resolve = RESOLVE_NO_SYMLINKS;
    const long number = ::syscall(SYS_openat2, at, path.c_str(), &how, sizeof how);
    if (number >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(number);
    if (errno == ENOSYS) has_openat2.store(false, std::memory_order_relaxed);
  }
  return open_stepwise(at, path, flags, mode);
}

int open_retrying(int at, const std::string& path, int flags, mode_t mode) {
  int number;
  do {
    number = at == AT_FDCWD ? open_once(at, path, flags, mode) : open_beneath(at, path, flags, mode);
  } while (number < 0 && errno == EINTR);
  return number;
}

constexpr mode_t kPermissionBits = 0777;

// What a change of modes has answered. Some file systems have none, and some servers keep theirs.
Status changed(int result) {
  if (result == 0 || errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS) return Status::success();
  return Status::from_errno("chmod");
}

Status make_directory(int at, const std::string& path, mode_t mode, bool& made_it) {
  made_it = ::mkdirat(at, path.c_str(), mode) == 0;
  if (!made_it) return errno == EEXIST ? Status::success() : Status::from_errno("mkdir");
  // The umask may have taken bits; what the parent passes on (its group) stays.
  struct stat made;
  // Removed already, because it was empty: whoever needs it makes it again.
  const auto unless_gone = [](const Status& status) {
    return status.code == ENOENT ? Status::success() : status;
  };
  if (::fstatat(at, path.c_str(), &made, AT_SYMLINK_NOFOLLOW) != 0)
    return unless_gone(Status::from_errno("stat"));
  if ((made.st_mode & kPermissionBits) == mode) return Status::success();
  const mode_t wanted = mode | (made.st_mode & ~(S_IFMT | kPermissionBits));
  return unless_gone(changed(::fchmodat(at, path.c_str(), wanted, 0)));
}

Kind kind_of(mode_t mode) {
  if (S_ISREG(mode)) return Kind::kRegular;
  if (S_ISDIR(mode)) return Kind::kDirectory;
  if (S_ISLNK(mode)) return Kind::kLink;
  return Kind::kOther;
}

void fill(const struct stat& from, Entry& entry) {
  const auto modified_ns = static_cast<std::uint64_t>(from.st_mtim.tv_sec) * 1'000'000'000U +
                           static_cast<std::uint64_t>(from.st_mtim.tv_nsec);
  entry = {kind_of(from.st_mode), static_cast<std::uint64_t>(from.st_size),        from.st_dev, from.st_ino,
           modified_ns,           static_cast<std::uint64_t>(from.st_blocks) * 512};
}

}  // namespace

Status leave_direct(File& file) {
  const int flags = ::fcntl(file.fd.get(), F_GETFL);
  if (flags < 0 || ::fcntl(file.fd.get(), F_SETFL, flags & ~O_DIRECT) != 0)
    return Status::from_errno("fcntl");
  file.direct = false;
  return Status::success();
}

Status make_directories(int at, const std::string& path, mode_t mode, bool& made) {
  const Status status = make_directory(at, path, mode, made);
  if (status.code != ENOENT) return status;
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos || slash == 0) return status;
  bool made_above = false;
  const Status above = make_directories(at, path.substr(0, slash), mode, made_above);
  return above.ok() ? make_directory(at, path, mode, made) : above;
}

bool DirectPolicy::wants(std::span<const std::byte> bytes) {
  if (!enabled_.load(std::memory_order_relaxed)) return false;
  if (aligned(bytes, kAlignmentMin)) return true;
  fallbacks_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void DirectPolicy::refused(std::span<const std::byte> bytes) {
  fallbacks_.fetch_add(1, std::memory_order_relaxed);
  if (aligned(bytes, kAlignmentMax)) enabled_.store(false, std::memory_order_relaxed);
}

Status inspect(int at, const std::string& path, Entry& entry) {
  struct stat status;
  if (::fstatat(at, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
    fill(status, entry);
    return Status::success();
  }
  entry = {};
  return errno == ENOENT ? Status::success() : Status::from_errno("stat");
}

Status inspect(const Fd& fd, Entry& entry) {
  struct stat status;
  if (::fstat(fd.get(), &status) != 0) return Status::from_errno("stat");
  fill(status, entry);
  return Status::success();
}

Status inspect_beneath(int at, const std::string& path, Entry& entry) {
  if (const Status seen = inspect(at, path, entry); !seen.ok()) return seen;
  if (entry.kind != Kind::kRegular || at == AT_FDCWD) return Status::success();
  const Fd place(open_retrying(at, path, O_PATH | O_NOFOLLOW, 0));
  if (!place.valid() && errno == ELOOP) entry.kind = Kind::kLink;
  return Status::success();
}

Status create_exclusive(int at, const std::string& path, Naming naming, const Modes& modes,
                        std::span<const std::byte> bytes, DirectPolicy& direct, File& file) {
  const std::size_t slash = path.find_last_of('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  const bool named = naming == Naming::kNamed;
  const std::string& target = named ? path : parent;
  const int flags = O_WRONLY | (named ? O_CREAT | O_EXCL | O_NOFOLLOW : O_TMPFILE);
  int tries = 0;
  file.direct = direct.wants(bytes);
  while (true) {
    file.fd = Fd(open_retrying(at, target, flags | (file.direct ? O_DIRECT : 0), modes.file));
    if (file.fd.valid()) {
      const Status given = give_mode(file.fd, modes);
      if (!given.ok() && named) (void)remove(at, path);
      return given;
    }
    const int error = errno;
    if (error == EINVAL && file.direct) {
      // Some file systems create the file before they refuse the flag; O_EXCL says it is ours.
      if (named) (void)remove(at, path);
      direct.refused(bytes);
      file.direct = false;
    } else if ((error == ENOENT || (error == EPERM && !named)) && tries++ < kDirectoryTries) {
      // Optimistic: the directory is there but for the first chunk in it. One that is removed just now, after
      // an eviction, is EPERM to ext4 when it is to hold a file without a name.
      bool made = false;
      const Status status = make_directories(at, parent, modes.directory, made);
      file.parents_made += made ? 1U : 0U;
      if (!status.ok()) return status;
    } else {
      return Status::failure(error, "create");
    }
  }
}

Status give_mode(const Fd& file, const Modes& modes) {
  return modes.umask_interferes ? changed(::fchmod(file.get(), modes.file)) : Status::success();
}

Status open_existing(int at, const std::string& path, std::span<std::byte> bytes, DirectPolicy& direct,
                     File& file) {
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
  file.direct = direct.wants(bytes);
  file.fd = Fd(open_retrying(at, path, kFlags | (file.direct ? O_DIRECT : 0), 0));
  if (!file.fd.valid() && errno == EINVAL && file.direct) {
    direct.refused(bytes);
    file.direct = false;
    file.fd = Fd(open_retrying(at, path, kFlags, 0));
  }
  return file.fd.valid() ? Status::success() : Status::from_errno("open");
}

Status reserve(File& file, std::size_t size_bytes) {
  while (::fallocate(file.fd.get(), 0, 0, static_cast<off_t>(size_bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return Status::success();
    if (errno != EINTR) return Status::from_errno("fallocate");
  }
  return Status::success();
}

Status write_all(File& file, std::span<const std::byte> bytes, DirectPolicy& direct) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    // One call moves at most 2,147,479,552 bytes on Linux, so larger chunks take several turns.
    const ssize_t count =
        ::pwrite(file.fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count < 0 && errno == EINVAL && file.direct) {
      // After a short transfer the rest is misaligned; that says nothing about the file system.
      if (done == 0) direct.refused(bytes);
      if (const Status left = leave_direct(file); !left.ok()) return left;
    } else if (count < 0 && errno != EINTR) {
      return Status::from_errno("write");
    } else if (count == 0) {
      return Status::failure(EIO, "write");
    }
  }
  return Status::success();
}

Status read_all(File& file, std::span<std::byte> bytes, DirectPolicy& direct, std::size_t& transferred) {
  transferred = 0;
  while (transferred < bytes.size()) {
    const ssize_t count = ::pread(file.fd.get(), bytes.data() + transferred, bytes.size() - transferred,
                                  static_cast<off_t>(transferred));
    if (count > 0) {
      transferred += static_cast<std::size_t>(count);
    } else if (count == 0) {
      return Status::success();
    } else if (errno == EINVAL && file.direct) {
      if (transferred == 0) direct.refused(bytes);
      if (const Status left = leave_direct(file); !left.ok()) return left;
    } else if (errno != EINTR) {
      return Status::from_errno("read");
    }
  }
  return Status::success();
}

Status move(int at, const std::string& from, const std::string& to, Replace replace) {
  if (replace == Replace::kNever) {
    if (::syscall(SYS_renameat2, at, from.c_str(), at, to.c_str(), RENAME_NOREPLACE) == 0) {
      return Status::success();
    }
    // File systems without the flag (NFS, some FUSE ones) say EINVAL, old kernels ENOSYS. Replacing
    // is right there too: the name is a hash of the content.
    if (errno != EINVAL && errno != ENOSYS) return Status::from_errno("rename");
  }
  return ::renameat(at, from.c_str(), at, to.c_str()) == 0 ? Status::success() : Status::from_errno("rename");
}

bool remove_empty_directory(int at, const std::string& path) {
  return ::unlinkat(at, path.c_str(), AT_REMOVEDIR) == 0;
}

Status remove(int at, const std::string& path) {
  bool was_there = false;
  return remove(at, path, was_there);
}

Status remove(int at, const std::string& path, bool& was_there) {
  was_there = ::unlinkat(at, path.c_str(), 0) == 0;
  return was_there || errno == ENOENT ? Status::success() : Status::from_errno("unlink");
}

}  // namespace kvfs::fs
