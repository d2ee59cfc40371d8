// Which op runs next.
#include "jobs/queue.hpp"

#include <algorithm>

namespace kvfs::jobs {

std::size_t JobQueue::push(const std::shared_ptr<Job>& job) {
  std::size_t accepted = job->keys.count();
  if (job->kind == JobKind::kStore) {
    accepted = std::min(accepted, limits_.queued_stores - std::min(limits_.queued_stores, queued_stores_));
    queued_stores_ += accepted;
  }
  job->claimable_ops = accepted;
  if (accepted > 0) (job->asker == Asker::kIndexUnseen ? unseen_ : of(job->kind)).push_back(job);
  return accepted;
}

bool JobQueue::may_load() const {
  return waiting(JobKind::kLoad) && loads_in_flight_ < limits_.loads_in_flight;
}

bool JobQueue::may_store() const {
  const std::size_t limit = beside_loads() ? limits_.stores_beside_loads : limits_.stores_in_flight;
  return waiting(JobKind::kStore) && stores_in_flight_ < limit;
}

bool JobQueue::may_begin_to_store() const {
  const std::size_t limit = beside_loads() ? limits_.storing_threads_beside_loads : limits_.storing_threads;
  return may_store() && storing_threads_ < limit;
}

bool JobQueue::has_claimable() const {
  return waiting(JobKind::kLookup) || may_load() || may_begin_to_store();
}

Claim JobQueue::claim() {
  if (waiting(JobKind::kLookup)) return take(JobKind::kLookup, limits_.lookups_per_claim);
  if (may_load() && !store_is_due()) return take(JobKind::kLoad, limits_.loads_per_claim);
  if (!may_begin_to_store()) return {};
  ++storing_threads_;
  return take(JobKind::kStore, 1);
}

Claim JobQueue::claim_more(JobKind kind, std::size_t most) {
  if (most == 0 || waiting(JobKind::kLookup)) return {};
  if (kind == JobKind::kLoad && may_load() && !store_is_due())
    return take(kind, std::min(most, limits_.loads_per_claim));
  if (kind == JobKind::kStore && may_store() && !may_load()) return take(kind, 1);
  return {};
}

Claim JobQueue::take(JobKind kind, std::size_t most) {
  Queue& queue = of(kind).empty() ? unseen_ : of(kind);
  const std::shared_ptr<Job> job = queue.front();
  if (kind == JobKind::kLoad) most = std::min(most, limits_.loads_in_flight - loads_in_flight_);
  const std::size_t begin = job->next_op;
  const std::size_t end = std::min(begin + most, job->claimable_ops);
  job->next_op = end;
  job->turn_ops += end - begin;
  if (end == job->claimable_ops) {
    queue.pop_front();
  } else if (job->turn_ops >= limits_.turn) {
    job->turn_ops = 0;
    queue.pop_front();
    queue.push_back(job);
  }
  if (kind == JobKind::kLoad) {
    loads_in_flight_ += end - begin;
    peak_loads_ = std::max(peak_loads_, loads_in_flight_);
  } else if (kind == JobKind::kStore) {
    queued_stores_ -= end - begin;
    stores_in_flight_ += end - begin;
    peak_stores_ = std::max(peak_stores_, stores_in_flight_);
  }
  return {job, begin, end};
}

void JobQueue::release(JobKind kind, std::size_t ops) {
  if (kind == JobKind::kLoad) loads_in_flight_ -= ops;
  if (kind == JobKind::kStore) stores_in_flight_ -= ops;
}

void JobQueue::put_down(JobKind kind) {
  if (kind == JobKind::kStore) --storing_threads_;
}

std::vector<Claim> JobQueue::take_all() {
  std::vector<Claim> all;
  const auto take_from = [&all](Queue& queue) {
    for (const auto& job : queue) all.push_back({job, job->next_op, job->claimable_ops});
    queue.clear();
  };
  for (Queue& queue : queues_) take_from(queue);
  take_from(unseen_);
  queued_stores_ = 0;
  return all;
}

}  // namespace kvfs::jobs
