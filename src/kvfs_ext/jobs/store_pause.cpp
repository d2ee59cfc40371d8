// Pauses that double.
#include "jobs/store_pause.hpp"

#include <algorithm>
#include <cerrno>

namespace kvfs::jobs {

namespace {

constexpr auto kFirst = std::chrono::seconds(1);
constexpr auto kLongest = std::chrono::seconds(60);

bool takes_no_stores(const Status& status) {
  return status.code == ENOSPC || status.code == EDQUOT || status.code == EROFS;
}

}  // namespace

bool StorePause::admits() {
  const std::lock_guard lock(mutex_);
  if (!paused_) return true;
  const Clock::time_point now = Clock::now();
  if (now < until_) return false;
  // This job's stores will tell. If they take long, the next one is not let through meanwhile.
  pause_ = std::min<Clock::duration>(2 * pause_, kLongest);
  until_ = now + pause_;
  return true;
}

void StorePause::note(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (status.ok()) {
    paused_ = false;
  } else if (takes_no_stores(status) && !paused_) {
    paused_ = true;
    pause_ = kFirst;
    until_ = Clock::now() + pause_;
  }
}

}  // namespace kvfs::jobs
