// Stores stop for a while when the disk takes none.
#pragma once

#include <chrono>
#include <mutex>

#include "base/status.hpp"

namespace kvfs::jobs {

// After a failure that the next store would meet, too, jobs are let through one at a time, after longer and
// longer pauses, until a store ends well. Thread-safe; no call blocks.
class StorePause {
 public:
  // Whether a job's stores may be tried. While paused, true once at the end of each pause.
  [[nodiscard]] bool admits();
  // A store has ended.
  void note(const Status& status);

 private:
  using Clock = std::chrono::steady_clock;

  std::mutex mutex_;  // guards what follows
  bool paused_ = false;
  Clock::duration pause_{};
  Clock::time_point until_{};
};

}  // namespace kvfs::jobs
