// Counting and evicting.
#include "jobs/evictor.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace kvfs::jobs {

namespace {

// How long what other processes do may go unnoticed.
constexpr auto kPeriod = std::chrono::seconds(1);
// Before the others learn of the room.
constexpr std::size_t kKeysAtOnceMax = 64;
constexpr std::size_t kEvictedKeptMax = 65'536;
constexpr std::size_t kUnusedKeptMax = 65'536;
// Walking a root with many chunks takes seconds.
constexpr auto kUnusedLookPeriod = std::chrono::minutes(1);
// Of the time, a twentieth at most.
constexpr int kLearnShare = 20;
// A sample may be a little off.
constexpr int kRounds = 4;
// Directories to remove before looking whether stores need room.
constexpr std::size_t kPrunedAtOnce = 16;
// And before looking what other processes do; half a second.
constexpr std::size_t kPrunedPerTurn = 256;
using Clock = std::chrono::steady_clock;

}  // namespace

void Evictor::start(Crew& crew) {
  if (!space_.enabled()) return;
  space_.on_scarce([this] { wake_up(); });
  thread_ = crew.start("kvfs-space", [this] { run(); });
}

void Evictor::ask_to_stop() {
  stop_ = true;
  wake_up();
}

void Evictor::stop() {
  ask_to_stop();
  if (!thread_.joinable()) return;
  thread_.join();
  // By loads that have ended since.
  if (!space_.must_count()) take_removed(true);
}

void Evictor::wake_up() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  wake_.notify_one();
}

void Evictor::run() {
  while (!stop_) {
    // Not before all has been counted: what is gone by then may not have been seen.
    if (!space_.must_count()) take_removed(true);
    space_.refresh();
    if (space_.must_count()) {
      count();
      space_.refresh();
    }
    evict();
    prune();
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, unpruned_.empty() ? kPeriod : Clock::duration::zero(),
                   [this] { return woken_ || stop_; });
    woken_ = false;
  }
}

void Evictor::take_removed(bool give_back) {
  std::vector<Removed> removed;
  {
    const std::lock_guard lock(mutex_);
    removed.swap(removed_);
  }
  for (Removed& each : removed) {
    if (give_back) space_.removed(each.bytes);
    unpruned_.push_back(std::move(each.path));
  }
}

void Evictor::prune() {
  for (std::size_t count = 0; count < kPrunedPerTurn && !unpruned_.empty() && !stop_; ++count) {
    if (count >= kPrunedAtOnce && space_.excess_bytes() > 0) return;
    const std::string path = std::move(unpruned_.back());
    unpruned_.pop_back();
    if (layouts::prune(context_, path)) space_.removed(layouts::kDirectoryBytes);
  }
}

void Evictor::count() {
  take_removed(true);
  const CountStart start = space_.begin_count();
  std::uint64_t bytes = 0;
  if (!layouts::count_tree(space_.root(), stop_, bytes)) return;
  space_.set_counted(bytes, start);
  take_removed(false);
}

void Evictor::evict() {
  for (int round = 0; round < kRounds && !stop_; ++round) {
    // What pruning will give back makes no more chunks victims.
    const std::uint64_t pending = unpruned_.size() * layouts::kDirectoryBytes;
    const std::uint64_t beyond = space_.excess_bytes();
    if (beyond <= pending) return;
    const std::uint64_t excess = beyond - pending;
    std::uint64_t freed = evict_unused(excess);
    if (freed < excess) freed += evict_own(excess - freed);
    space_.refresh();
    if (freed == 0 && !learn()) return;
  }
}

bool Evictor::learn() {
  const auto began = std::chrono::steady_clock::now();
  if (began < learn_at_) return false;
  lookups_.learn();
  const auto ended = std::chrono::steady_clock::now();
  learn_at_ = ended + std::max<Clock::duration>(kPeriod, kLearnShare * (ended - began));
  return true;
}

std::uint64_t Evictor::evict_unused(std::uint64_t bytes) {
  const auto now = std::chrono::steady_clock::now();
  if (unused_.empty() && now >= look_again_at_) {
    fs::Entry own;
    if (!fs::inspect(context_.directory.at(), ".", own).ok()) return 0;
    unused_ = layouts::unused_chunks(space_.root(), own, kUnusedKeptMax, stop_);
    std::ranges::reverse(unused_);
    look_again_at_ = now + kUnusedLookPeriod;
  }
  std::uint64_t freed = 0;
  while (!unused_.empty() && freed < bytes && !stop_) {
    const layouts::UnusedChunk chunk = std::move(unused_.back());
    unused_.pop_back();
    Status status;
    if (const std::uint64_t removed = layouts::remove_unused(space_.root(), chunk, status); removed > 0) {
      freed += removed;
      ++chunks_;
    } else if (!status.ok()) {
      ++failures_;
    }
  }
  if (freed > 0) space_.removed_unowned(freed);
  bytes_ += freed;
  return freed;
}

std::uint64_t Evictor::evict_own(std::uint64_t bytes) {
  const std::uint64_t cost = space_.chunk_cost_bytes();
  std::uint64_t left = (bytes + cost - 1) / cost;
  const index::Use newest = lookups_.use_of_oldest(left);
  std::uint64_t freed = 0;
  const std::size_t at_once = std::min(kKeysAtOnceMax, space_.chunks_per_lease());
  std::vector<std::string> keys;
  while (left > 0 && !stop_) {
    keys.clear();
    lookups_.take_oldest(newest, std::min<std::uint64_t>(left, at_once), keys);
    if (keys.empty()) break;
    std::size_t removed = 0;
    for (const std::string& key : keys) removed += evict_one(key) ? 1U : 0U;
    left -= keys.size();
    freed += removed * cost;
    // The room is there as soon as the slot says so. Other processes see the same excess and evict, too.
    space_.refresh();
    if (space_.remaining_excess_bytes() == 0) break;
  }
  return freed;
}

bool Evictor::evict_one(const std::string& key) {
  Status status;
  std::string path = layouts::chunk_path(key);
  std::uint64_t bytes = 0;
  const bool was_there = layouts::remove_chunk(context_, path, status, bytes);
  if (!status.ok()) {
    ++failures_;
    return false;
  }
  lookups_.evicted(key);
  if (was_there) {
    // One that has grown since was not reserved as such.
    space_.removed(std::min(bytes, space_.chunk_cost_bytes() - layouts::kDirectoryBytes));
    unpruned_.push_back(std::move(path));
  }
  ++chunks_;
  bytes_ += space_.chunk_cost_bytes();
  const std::lock_guard lock(mutex_);
  if (evicted_.size() >= kEvictedKeptMax) evicted_.pop_front();
  evicted_.push_back(key);
  return was_there;
}

void Evictor::removed(const std::string& path, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  removed_.push_back({path, bytes});
}

std::vector<std::string> Evictor::take_evicted() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> taken(std::make_move_iterator(evicted_.begin()),
                                 std::make_move_iterator(evicted_.end()));
  evicted_.clear();
  return taken;
}

}  // namespace kvfs::jobs
