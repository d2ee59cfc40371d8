// The engine: threads that run jobs against one namespace, without Python and without its GIL.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "fs/ring.hpp"
#include "jobs/job.hpp"
#include "layouts/files.hpp"
#include "layouts/files_window.hpp"

namespace kvfs::jobs {

// How bytes move: psync is pread and pwrite, always there; uring keeps many reads of a thread in flight.
enum class IoEngine : std::uint8_t { kAuto, kUring, kPsync };

struct EngineOptions {
  std::string base_path;            // the namespace's directory, made on the first store
  std::size_t n_read_threads = 0;   // prefer lookups and loads
  std::size_t n_write_threads = 0;  // prefer stores; either kind takes what is there
  bool use_o_direct = true;
  IoEngine io_engine = IoEngine::kAuto;
};

// The primary tier's memory: `num_chunks` rows of `chunk_size_bytes`. Not owned.
struct PrimaryBuffer {
  std::byte* data = nullptr;
  std::size_t num_chunks = 0;
  std::size_t chunk_size_bytes = 0;
};

struct EngineStats {
  std::uint64_t direct_fallbacks = 0;
  std::uint64_t duplicate_stores = 0;
  std::uint64_t healed_files = 0;
  std::uint64_t removed_files = 0;
  std::uint64_t inflight_jobs = 0;
};

// Thread-safe. submit(), poll() and stats() take a short lock and never wait for I/O. The buffer must
// stay valid until close() has returned: only then has the last operation on it ended.
class Engine {
 public:
  // Make the namespace's directory, see whether io_uring works in it, start the threads. Blocks on the
  // file system. Fails without a trace when the directory cannot be made, when kUring was asked for and
  // does not work, or with EAGAIN when the system has no room for the threads.
  static Status open(EngineOptions options, PrimaryBuffer buffer, std::unique_ptr<Engine>& engine);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Accept a job; false after close(), and then nothing was taken. `chunk_ids` is empty for a
  // lookup and as long as the keys otherwise. An id outside the buffer is that key's EINVAL.
  [[nodiscard]] bool submit(std::int64_t job_id, JobKind kind, PackedKeys keys,
                            std::vector<std::int64_t> chunk_ids);

  // The jobs that ended since the last call, each exactly once over the engine's life, also after close().
  [[nodiscard]] std::vector<Completion> poll();

  // Wait until no accepted job is unfinished; false when `timeout` passed first.
  [[nodiscard]] bool drain(std::optional<Clock::duration> timeout);

  // Cancel queued ops (ECANCELED), wait for the running ones, join the threads. Idempotent.
  void close();

  [[nodiscard]] EngineStats stats();

  // What the probe said: success is io_uring, a failure why it is not used; ECANCELED where psync was asked
  // for.
  [[nodiscard]] const Status& uring_status() const { return uring_status_; }

  // False in a forked child, which has a copy of this object and none of its threads. There no other
  // method may be called and the object must be leaked: destroying what threads wait on never returns.
  [[nodiscard]] bool in_owner_process() const;

 private:
  Engine(EngineOptions options, PrimaryBuffer buffer, const Status& uring_status);

  // The ops [begin, end) of one job, claimed by one thread.
  struct Claim {
    std::shared_ptr<Job> job;
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  using Preference = std::array<JobKind, kJobKinds>;

  void run(Preference preference);
  [[nodiscard]] bool has_work() const;
  [[nodiscard]] Claim claim(const Preference& preference);
  // The next loads for a thread that has some in flight already; empty when there are none, when stores
  // wait for a thread that prefers them, or when the engine stops.
  [[nodiscard]] Claim claim_more_loads(const Preference& preference);
  [[nodiscard]] std::size_t ops_per_claim(JobKind kind) const;
  void execute(const Claim& claim);
  void execute_loads(Claim claim, layouts::FilesWindow& window, const Preference& preference);
  Status execute_op(Job& job, std::size_t op, std::string& path, std::size_t& moved);
  // The row of an op's chunk id; empty, with `path` naming the row, if the buffer has none.
  [[nodiscard]] std::span<std::byte> row_of(const Job& job, std::size_t op, std::string& path) const;
  [[nodiscard]] fs::RingMemory ring_memory() const;
  void complete(Job& job);
  std::deque<std::shared_ptr<Job>>& queue(JobKind kind) { return queues_[static_cast<std::size_t>(kind)]; }

  const EngineOptions options_;
  const PrimaryBuffer buffer_;
  const std::size_t thread_count_;
  const pid_t owner_pid_;
  const Status uring_status_;
  layouts::FilesContext context_;
  // Registers the buffer once; the threads' rings clone from it. Carries no reads.
  fs::Ring donor_;

  std::mutex mutex_;  // guards what follows, and each queued job's next_op
  std::condition_variable work_available_;
  std::condition_variable idle_;
  std::array<std::deque<std::shared_ptr<Job>>, kJobKinds> queues_;
  std::vector<Completion> completions_;
  std::size_t inflight_jobs_ = 0;
  bool stop_ = false;

  std::mutex close_mutex_;  // held while joining, so that a second close() waits for the first
  std::vector<std::thread> threads_;
};

}  // namespace kvfs::jobs
