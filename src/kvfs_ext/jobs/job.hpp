// One job: what was asked, how far its ops are, and what became of each key.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace kvfs::jobs {

using Clock = std::chrono::steady_clock;

enum class JobKind : std::uint8_t { kLookup, kLoad, kStore };
inline constexpr std::size_t kJobKinds = 3;

// Keys as they cross the language border: equally long, one after the other.
struct PackedKeys {
  std::string bytes;
  std::size_t key_size_bytes = 0;

  [[nodiscard]] std::size_t count() const { return bytes.size() / key_size_bytes; }
  [[nodiscard]] std::string_view at(std::size_t index) const {
    return std::string_view(bytes).substr(index * key_size_bytes, key_size_bytes);
  }
};

// Who waits for a job's end: the caller, who polls; or, of a lookup, the index, the index for keys that were
// asked about unseen, or one who checks its answer.
enum class Asker : std::uint8_t { kCaller, kIndex, kIndexUnseen, kCheck };

// What became of a job. Plain data, handed to whoever polls.
struct Completion {
  std::int64_t job_id = 0;
  JobKind kind = JobKind::kStore;
  std::vector<int> outcomes;  // an errno a key, in the job's order; 0 is success
  std::uint64_t bytes_moved = 0;
  double queue_s = 0;
  double transfer_s = 0;
  std::string detail;  // on the first failure by position
};

// Shared by the threads that run its ops. An op index is claimed by one thread under the engine's
// mutex; from then on that thread alone writes the op's outcome. The last op to finish closes the job.
class Job {
 public:
  Job(std::int64_t id, JobKind kind, PackedKeys keys, std::vector<std::int64_t> chunk_ids,
      Asker asker = Asker::kCaller);

  const std::int64_t id;
  const JobKind kind;
  const PackedKeys keys;
  const std::vector<std::int64_t> chunk_ids;  // empty for a lookup
  const Asker asker;
  const Clock::time_point accepted_at;

  // Set before any thread has the job: when its last key was used; the ones before it count as later.
  std::uint64_t last_key_use = 0;
  [[nodiscard]] std::uint64_t use_of(std::size_t op) const { return last_key_use + keys.count() - 1 - op; }

  // The queue's, guarded by the engine's mutex: the first op that nobody has claimed, the end of those that
  // can be, and how many were claimed since the job last made room for another.
  std::size_t next_op = 0;
  std::size_t claimable_ops = 0;
  std::size_t turn_ops = 0;

  // Record when the first op starts.
  void started();
  // Record an op's end. `path` is for the message and may be empty where no file was reached.
  // Thread-safe for different ops. True for exactly one call: the one that ends the job.
  bool finish_op(std::size_t op, const Status& status, std::uint64_t bytes_moved, std::string_view path);
  // The same for an op that never started; `reason` goes on from "store failed for chunk 1 of 3 ".
  bool refuse_op(std::size_t op, int code, std::string_view reason);
  // After finish_op() said true: move the result out.
  [[nodiscard]] Completion take_completion();

 private:
  bool end_op(std::size_t op, int code, std::uint64_t bytes_moved);
  void keep_first_failure(std::size_t op, std::string_view step, std::string_view rest);

  std::atomic<std::size_t> unfinished_;
  std::atomic<std::uint64_t> bytes_moved_{0};
  std::vector<int> outcomes_;

  std::mutex mutex_;  // guards what follows
  Clock::time_point started_{};
  std::size_t failed_op_;
  std::string detail_;
};

}  // namespace kvfs::jobs
