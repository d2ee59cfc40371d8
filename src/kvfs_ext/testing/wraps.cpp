// The C library's calls, each with a fault when a test wants one.
#include <dirent.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

#include "testing/faults.hpp"

using namespace kvfs::testing;

namespace {

// Make a call, or not; and lose its answer, or not. `make` returns what the call returns, -1 for a failure.
template <typename Place, typename Make>
auto with_fault(Call call, const Place& place, const Make& make) -> decltype(make()) {
  const Fault fault = decide(call, place);
  if (!fault.stops()) {
    const auto answer = make();
    if (!fault.is_late()) return answer;
  }
  errno = fault.error;
  return -1;
}

// The same for calls that move bytes: some of them, or none.
template <typename Place, typename Make>
ssize_t with_short(Call call, const Place& place, std::size_t count, const Make& make) {
  const Fault fault = decide(call, place);
  const std::size_t wanted = fault.limit(count);
  if (!fault.stops()) {
    const ssize_t answer = wanted == 0 && count > 0 ? 0 : make(wanted);
    if (!fault.is_late()) return answer;
  }
  errno = fault.error;
  return -1;
}

// The same for calls that return a new descriptor: nobody would close one whose number is lost.
template <typename Place, typename Make>
int with_descriptor(Call call, const Place& place, const Make& make) {
  const Fault fault = decide(call, place);
  if (!fault.stops()) {
    const int fd = make();
    if (!fault.is_late()) return fd;
    if (fd >= 0) (void)::syscall(SYS_close, fd);
  }
  errno = fault.error;
  return -1;
}

Call opening(unsigned long long flags) {
  if ((flags & O_TMPFILE) == O_TMPFILE) return Call::kOpenatNameless;
  if ((flags & O_CREAT) != 0) return Call::kOpenatCreate;
  if ((flags & O_PATH) != 0) return Call::kOpenatPath;
  return (flags & O_DIRECTORY) != 0 ? Call::kOpenatDirectory : Call::kOpenat;
}

Call fcntl_of(int command) {
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) return Call::kFcntlDup;
  return command == F_GETFL || command == F_SETFL ? Call::kFcntlFlags : Call::kFcntlLock;
}

}  // namespace

// What the linker made of the real ones. Variadic functions take their arguments as if there were all of
// them.
extern "C" {

int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, mode_t mode) {
  return with_descriptor(
      Call::kOpen, [=] { return place_of(AT_FDCWD, path); }, [=] { return __real_open(path, flags, mode); });
}

int __real_openat(int at, const char* path, int flags, ...);
int __wrap_openat(int at, const char* path, int flags, mode_t mode) {
  return with_descriptor(
      opening(static_cast<unsigned>(flags)), [=] { return place_of(at, path); },
      [=] { return __real_openat(at, path, flags, mode); });
}

// The number is free again in any case, as on Linux.
int __real_close(int fd);
int __wrap_close(int fd) {
  const Fault fault = decide(Call::kClose, [=] { return place_of(fd); });
  const int answer = __real_close(fd);
  if (!fault.stops() && !fault.is_late()) return answer;
  errno = fault.error;
  return -1;
}

int __real_fstat(int fd, struct stat* status);
int __wrap_fstat(int fd, struct stat* status) {
  return with_fault(Call::kFstat, [=] { return place_of(fd); }, [=] { return __real_fstat(fd, status); });
}

int __real_fstatat(int at, const char* path, struct stat* status, int flags);
int __wrap_fstatat(int at, const char* path, struct stat* status, int flags) {
  return with_fault(
      Call::kFstatat, [=] { return place_of(at, path); },
      [=] { return __real_fstatat(at, path, status, flags); });
}

int __real_fstatfs(int fd, struct statfs* status);
int __wrap_fstatfs(int fd, struct statfs* status) {
  return with_fault(Call::kFstatfs, [=] { return place_of(fd); }, [=] { return __real_fstatfs(fd, status); });
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, long argument) {
  const auto place = [=] { return place_of(fd); };
  const auto make = [=] { return __real_fcntl(fd, command, argument); };
  const Call call = fcntl_of(command);
  return call == Call::kFcntlDup ? with_descriptor(call, place, make) : with_fault(call, place, make);
}

int __real_dup3(int from, int to, int flags);
int __wrap_dup3(int from, int to, int flags) {
  return with_fault(
      Call::kDup3, [=] { return place_of(from); }, [=] { return __real_dup3(from, to, flags); });
}

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation) {
  return with_fault(Call::kFlock, [=] { return place_of(fd); }, [=] { return __real_flock(fd, operation); });
}

int __real_ftruncate(int fd, off_t size);
int __wrap_ftruncate(int fd, off_t size) {
  return with_fault(
      Call::kFtruncate, [=] { return place_of(fd); }, [=] { return __real_ftruncate(fd, size); });
}

int __real_fallocate(int fd, int mode, off_t offset, off_t size);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t size) {
  return with_fault(
      Call::kFallocate, [=] { return place_of(fd); },
      [=] { return __real_fallocate(fd, mode, offset, size); });
}

int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode) {
  return with_fault(Call::kFchmod, [=] { return place_of(fd); }, [=] { return __real_fchmod(fd, mode); });
}

int __real_fchmodat(int at, const char* path, mode_t mode, int flags);
int __wrap_fchmodat(int at, const char* path, mode_t mode, int flags) {
  return with_fault(
      Call::kFchmodat, [=] { return place_of(at, path); },
      [=] { return __real_fchmodat(at, path, mode, flags); });
}

int __real_fstatvfs(int fd, struct statvfs* status);
int __wrap_fstatvfs(int fd, struct statvfs* status) {
  return with_fault(
      Call::kFstatvfs, [=] { return place_of(fd); }, [=] { return __real_fstatvfs(fd, status); });
}

ssize_t __real_pread(int fd, void* bytes, std::size_t count, off_t offset);
ssize_t __wrap_pread(int fd, void* bytes, std::size_t count, off_t offset) {
  return with_short(
      Call::kPread, [=] { return place_of(fd); }, count,
      [=](std::size_t size) { return __real_pread(fd, bytes, size, offset); });
}

ssize_t __real_pwrite(int fd, const void* bytes, std::size_t count, off_t offset);
ssize_t __wrap_pwrite(int fd, const void* bytes, std::size_t count, off_t offset) {
  return with_short(
      Call::kPwrite, [=] { return place_of(fd); }, count,
      [=](std::size_t size) { return __real_pwrite(fd, bytes, size, offset); });
}

ssize_t __real_read(int fd, void* bytes, std::size_t count);
ssize_t __wrap_read(int fd, void* bytes, std::size_t count) {
  return with_short(
      Call::kRead, [=] { return place_of(fd); }, count,
      [=](std::size_t size) { return __real_read(fd, bytes, size); });
}

ssize_t __real_write(int fd, const void* bytes, std::size_t count);
ssize_t __wrap_write(int fd, const void* bytes, std::size_t count) {
  return with_short(
      Call::kWrite, [=] { return place_of(fd); }, count,
      [=](std::size_t size) { return __real_write(fd, bytes, size); });
}

ssize_t __real_fgetxattr(int fd, const char* name, void* value, std::size_t size);
ssize_t __wrap_fgetxattr(int fd, const char* name, void* value, std::size_t size) {
  return with_fault(
      Call::kFgetxattr, [=] { return place_of(fd); },
      [=] { return __real_fgetxattr(fd, name, value, size); });
}

int __real_fsetxattr(int fd, const char* name, const void* value, std::size_t size, int flags);
int __wrap_fsetxattr(int fd, const char* name, const void* value, std::size_t size, int flags) {
  return with_fault(
      Call::kFsetxattr, [=] { return place_of(fd); },
      [=] { return __real_fsetxattr(fd, name, value, size, flags); });
}

int __real_mkdirat(int at, const char* path, mode_t mode);
int __wrap_mkdirat(int at, const char* path, mode_t mode) {
  return with_fault(
      Call::kMkdirat, [=] { return place_of(at, path); }, [=] { return __real_mkdirat(at, path, mode); });
}

int __real_linkat(int from_at, const char* from, int to_at, const char* to, int flags);
int __wrap_linkat(int from_at, const char* from, int to_at, const char* to, int flags) {
  return with_fault((flags & AT_EMPTY_PATH) != 0 ? Call::kLinkat : Call::kLinkatProc,
                    [=] { return place_of(to_at, to); },
                    [=] { return __real_linkat(from_at, from, to_at, to, flags); });
}

int __real_unlinkat(int at, const char* path, int flags);
int __wrap_unlinkat(int at, const char* path, int flags) {
  return with_fault((flags & AT_REMOVEDIR) != 0 ? Call::kRmdir : Call::kUnlinkat,
                    [=] { return place_of(at, path); }, [=] { return __real_unlinkat(at, path, flags); });
}

int __real_renameat(int from_at, const char* from, int to_at, const char* to);
int __wrap_renameat(int from_at, const char* from, int to_at, const char* to) {
  return with_fault(
      Call::kRenameat, [=] { return place_of(to_at, to); },
      [=] { return __real_renameat(from_at, from, to_at, to); });
}

void* __real_mmap(void* address, std::size_t size, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* address, std::size_t size, int protection, int flags, int fd, off_t offset) {
  const Fault fault = decide(Call::kMmap, [=] { return place_of(fd); });
  if (!fault.stops()) return __real_mmap(address, size, protection, flags, fd, offset);
  errno = fault.error;
  return MAP_FAILED;
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  const auto make = [&] { return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]); };
  const int fd = static_cast<int>(a[0]);
  switch (number) {
    case SYS_sched_setattr:
      return make();  // of no file
    case SYS_openat2:
      return with_descriptor(
          opening(reinterpret_cast<const struct open_how*>(a[2])->flags),
          [=] { return place_of(fd, reinterpret_cast<const char*>(a[1])); },
          [&] { return static_cast<int>(make()); });
    case SYS_renameat2:
      return with_fault(
          Call::kRenameat2,
          [&] { return place_of(static_cast<int>(a[2]), reinterpret_cast<const char*>(a[3])); }, make);
    case SYS_getdents64:
      return with_fault(Call::kGetdents, [=] { return place_of(fd); }, make);
    case SYS_io_uring_setup:
      return with_descriptor(
          Call::kRingSetup, [] { return std::string("io_uring"); }, [&] { return static_cast<int>(make()); });
    case SYS_io_uring_register:
      return with_fault(Call::kRingRegister, [=] { return place_of(fd); }, make);
    case SYS_io_uring_enter:
      // Handing over can fail for want of memory; waiting for what was handed over ends but early.
      return with_fault(
          static_cast<unsigned>(a[1]) > 0 ? Call::kRingEnter : Call::kRingWait, [=] { return place_of(fd); },
          make);
    default:
      return with_fault(Call::kUnknown, [=] { return "system call " + std::to_string(number); }, make);
  }
}

}  // extern "C"
