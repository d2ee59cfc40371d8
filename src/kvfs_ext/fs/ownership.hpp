// Whether this engine is alone with its namespace: a lock that the kernel drops when the process ends.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::fs {

enum class Sharing : std::uint8_t { kAuto, kOwner, kShared };

// The owner holds flock() on a file in the directory, everybody else a read lock of its first byte: both work
// on a file that is open for reading, so that its file system can still be remounted read-only. Who shares
// also makes the file longer, so that an owner who does not look meanwhile still learns of it. Thread-safe
// once it is acquired.
class Ownership {
 public:
  // Take the place that is free. `directory` outlives this. Never waits for another process. Fails for kOwner
  // alone: EBUSY if somebody else uses the directory, or what the system said; otherwise what does not work
  // makes the engine share.
  // `writer` is a number that this process puts into the names of its temporaries: it counts as alive from
  // here until release().
  Status acquire(const Directory& directory, Sharing wanted, std::uint64_t writer);
  // Whether a process with this number has the directory open. What cannot be told may be.
  [[nodiscard]] bool is_alive(std::uint64_t writer);

  [[nodiscard]] bool owner() const { return owner_.load(std::memory_order_relaxed); }

  // Whether this engine still is the owner. Asks the kernel when it last did so more than 50 ms ago, which
  // takes a microsecond and no disk; once it has said no it shares for good.
  [[nodiscard]] bool confirm();
  // The same, whenever it last asked.
  [[nodiscard]] bool confirm_now();

  // Share from now on: somebody else was seen to store here.
  void give_up();

  // Let go of it: somebody else may become the owner.
  void release();

 private:
  // With the mutex held.
  void become_shared();

  void share();
  void unlock();
  // Hold the lock that says that this writer is alive.
  void announce();

  const Directory* directory_ = nullptr;
  std::uint64_t writer_ = 0;
  std::mutex mutex_;  // guards what follows
  Fd file_;
  std::int64_t size_bytes_ = 0;  // of the file, when it was locked
  std::atomic<bool> owner_{false};
  std::atomic<std::int64_t> confirmed_ms_{0};
};

// Whether no engine has the directory open, as far as its lock file can tell; false where it has none,
// because others than kvfs take no lock.
[[nodiscard]] bool is_unused(int directory);

}  // namespace kvfs::fs
