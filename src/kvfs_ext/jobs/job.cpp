// One job's bookkeeping.
#include "jobs/job.hpp"

#include <system_error>
#include <utility>

namespace kvfs::jobs {

namespace {

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Job::Job(std::int64_t job_id, JobKind job_kind, PackedKeys packed_keys, std::vector<std::int64_t> ids,
         Asker job_asker)
    : id(job_id),
      kind(job_kind),
      keys(std::move(packed_keys)),
      chunk_ids(std::move(ids)),
      asker(job_asker),
      accepted_at(Clock::now()),
      unfinished_(keys.count()),
      outcomes_(keys.count(), 0),
      failed_op_(keys.count()) {}

void Job::started() {
  const std::lock_guard lock(mutex_);
  if (started_ == Clock::time_point{}) started_ = Clock::now();
}

bool Job::finish_op(std::size_t op, const Status& status, std::uint64_t bytes_moved, std::string_view path) {
  // That a key is absent is a lookup's answer, not its failure.
  if (!status.ok() && kind != JobKind::kLookup) {
    std::string rest = path.empty() ? std::string(":") : std::string("at ").append(path).append(":");
    keep_first_failure(op, status.step,
                       rest.append(" ").append(std::generic_category().message(status.code)));
  }
  return end_op(op, status.code, bytes_moved);
}

bool Job::refuse_op(std::size_t op, int code, std::string_view reason) {
  if (kind != JobKind::kLookup) keep_first_failure(op, kind == JobKind::kLoad ? "load" : "store", reason);
  return end_op(op, code, 0);
}

bool Job::end_op(std::size_t op, int code, std::uint64_t bytes_moved) {
  outcomes_[op] = code;
  bytes_moved_.fetch_add(bytes_moved, std::memory_order_relaxed);
  // Releases this op's outcome to, and acquires all others' for, the thread that ends the job.
  return unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

void Job::keep_first_failure(std::size_t op, std::string_view step, std::string_view rest) {
  const std::lock_guard lock(mutex_);
  if (op >= failed_op_) return;
  failed_op_ = op;
  detail_ = std::string(step) + " failed for chunk " + std::to_string(op + 1) + " of " +
            std::to_string(outcomes_.size());
  // A colon follows the number at once.
  if (!rest.starts_with(':')) detail_ += ' ';
  detail_.append(rest);
}

Completion Job::take_completion() {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  const Clock::time_point begun = started_ == Clock::time_point{} ? now : started_;
  return {id,
          kind,
          std::move(outcomes_),
          bytes_moved_.load(std::memory_order_relaxed),
          seconds(begun - accepted_at),
          seconds(now - begun),
          std::move(detail_)};
}

}  // namespace kvfs::jobs
