// Which op runs next: lookups, loads and stores that wait, and what of them may be in flight at once.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "jobs/job.hpp"

namespace kvfs::jobs {

// Counted in ops, that is in chunks: the engine derives them from budgets in bytes. All are at least 1.
struct QueueLimits {
  std::size_t loads_in_flight = 1;
  std::size_t stores_in_flight = 1;
  // Stores that may be in flight while loads wait or run: few, so that a load finds a disk that is nearly
  // idle, and never none, so that stores go on.
  std::size_t stores_beside_loads = 1;
  std::size_t queued_stores = 1;
  // Threads that may have stores in hand, at all and while loads wait or run: a file system that hangs on
  // writes must not get them all.
  std::size_t storing_threads = 1;
  std::size_t storing_threads_beside_loads = 1;
  // Ops that a claim takes at once.
  std::size_t lookups_per_claim = 1;
  std::size_t loads_per_claim = 1;
  // Ops that a job gets before it makes room for the next one of its kind.
  std::size_t turn = 1;
};

// The ops [begin, end) of one job, claimed by one thread.
struct Claim {
  std::shared_ptr<Job> job;
  std::size_t begin = 0;
  std::size_t end = 0;

  [[nodiscard]] bool empty() const { return begin == end; }
};

// Not thread-safe: the engine's mutex guards it. No call blocks or allocates more than a queue's node.
class JobQueue {
 public:
  explicit JobQueue(const QueueLimits& limits) : limits_(limits) {}

  // Take a job in. Returns how many of its ops, counted from the first, have room; the others are shed and
  // will never be claimed.
  [[nodiscard]] std::size_t push(const std::shared_ptr<Job>& job);

  // Whether claim() would give something.
  [[nodiscard]] bool has_claimable() const;
  // The next ops for a thread with empty hands; empty when there are none or their budget is used up.
  [[nodiscard]] Claim claim();
  // The next loads or stores, `most` at most, for a thread that has some of that kind in flight; empty also
  // when something else is due, so that the thread comes back with empty hands.
  [[nodiscard]] Claim claim_more(JobKind kind, std::size_t most);
  // Give back ops that ended.
  void release(JobKind kind, std::size_t ops);
  // The thread that claimed this kind has empty hands again.
  void put_down(JobKind kind);

  // Take out all that nobody has claimed.
  [[nodiscard]] std::vector<Claim> take_all();

  [[nodiscard]] std::size_t peak_loads() const { return peak_loads_; }
  [[nodiscard]] std::size_t peak_stores() const { return peak_stores_; }

 private:
  using Queue = std::deque<std::shared_ptr<Job>>;

  Queue& of(JobKind kind) { return queues_[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] const Queue& of(JobKind kind) const { return queues_[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] bool waiting(JobKind kind) const {
    return !of(kind).empty() || (kind == JobKind::kLookup && !unseen_.empty());
  }
  [[nodiscard]] bool beside_loads() const { return waiting(JobKind::kLoad) || loads_in_flight_ > 0; }
  [[nodiscard]] bool may_load() const;
  [[nodiscard]] bool may_store() const;
  [[nodiscard]] bool may_begin_to_store() const;
  // Stores wait beside loads and no thread has any.
  [[nodiscard]] bool store_is_due() const { return waiting(JobKind::kStore) && storing_threads_ == 0; }
  Claim take(JobKind kind, std::size_t most);

  const QueueLimits limits_;
  std::array<Queue, kJobKinds> queues_;
  // Lookups that come after all others: each request has thousands of these, and most requests are done with
  // the answer to their first question, which is none of them.
  Queue unseen_;
  std::size_t queued_stores_ = 0;
  std::size_t loads_in_flight_ = 0;
  std::size_t stores_in_flight_ = 0;
  std::size_t storing_threads_ = 0;
  std::size_t peak_loads_ = 0;
  std::size_t peak_stores_ = 0;
};

}  // namespace kvfs::jobs
