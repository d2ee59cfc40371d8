// An open directory that paths are relative to, so that the kernel walks two names instead of all of them.
#pragma once

#include <fcntl.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/file.hpp"

namespace kvfs::fs {

// Thread-safe once it is open. The default one is the process's working directory.
class Directory {
 public:
  Directory() = default;
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  // Make the directory with its missing parents and open it. `modes` are for all that is made here; whether
  // the umask interferes is found out. Blocks. Call it once.
  Status open(std::string path, Modes modes = {});

  // Let go of it, so that its file system can be unmounted; nobody uses it any more.
  void close() { fd_ = Fd(); }

  [[nodiscard]] const Modes& modes() const { return modes_; }
  // What the *at() calls want.
  [[nodiscard]] int at() const { return fd_.valid() ? fd_.get() : AT_FDCWD; }
  // Have room for descriptors up to `count` in the process's table. The kernel lets it grow on demand, and
  // keeps the thread that met its end waiting for some 20 ms then.
  void make_room_for_descriptors(int count) const;
  // `relative`, which lies in this directory, as users know it.
  [[nodiscard]] std::string path_of(const std::string& relative) const;

  // The beginnings and ends of being opened anew: odd while that is under way.
  [[nodiscard]] std::uint64_t restorations() const { return restorations_.load(std::memory_order_acquire); }
  // Whether somebody has removed the directory since it was opened: everything in it is ENOENT then, also
  // when a new one lies at its path. Opens that one, made if it is missing, under the same number, so that
  // calls of other threads go on. Blocks. True when there is a reason to try again what began when
  // restorations() was this: another thread may have opened it since.
  bool restore_if_removed(std::uint64_t restorations_before);

 private:
  std::string path_;
  Modes modes_;
  Fd fd_;
  std::mutex restoring_;
  std::atomic<std::uint64_t> restorations_{0};
};

}  // namespace kvfs::fs
