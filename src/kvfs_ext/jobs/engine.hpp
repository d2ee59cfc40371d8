// The engine: threads that run jobs against one namespace, without Python and without its GIL.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/status.hpp"
#include "fs/ring.hpp"
#include "jobs/evictor.hpp"
#include "jobs/job.hpp"
#include "jobs/lookups.hpp"
#include "jobs/queue.hpp"
#include "jobs/space.hpp"
#include "jobs/store_pause.hpp"
#include "jobs/threads.hpp"
#include "layouts/files.hpp"
#include "layouts/files_window.hpp"

namespace kvfs::jobs {

// How bytes move: psync is pread and pwrite, always there; uring keeps many reads of a thread in flight.
enum class IoEngine : std::uint8_t { kAuto, kUring, kPsync };

struct EngineOptions {
  std::string base_path;  // the namespace's directory
  std::size_t n_threads = 1;
  bool use_o_direct = true;
  IoEngine io_engine = IoEngine::kAuto;
  // What may be in flight at once; one chunk always may.
  std::uint64_t max_inflight_read_bytes = 0;
  std::uint64_t max_inflight_write_bytes = 0;
  // Stores that wait beyond this are shed; one chunk always has room.
  std::uint64_t max_queued_store_bytes = 0;
  fs::Sharing sharing = fs::Sharing::kAuto;
  double negative_ttl_s = 1.0;
  layouts::Checksum checksum = layouts::Checksum::kAuto;
  fs::Modes modes;
  std::string space_root;  // what the limits are for
  SpaceLimits limits;
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
  std::uint64_t shed_stores = 0;
  std::uint64_t paused_stores = 0;
  EvictionStats evicted;
  SpaceStats space;
  std::uint64_t seals = 0;  // 1: chunks are sealed and verified
  std::uint64_t verified_loads = 0;
  std::uint64_t unverified_loads = 0;
  std::uint64_t damaged_chunks = 0;
  std::uint64_t peak_inflight_read_bytes = 0;
  std::uint64_t peak_inflight_write_bytes = 0;
  std::uint64_t inflight_jobs = 0;
  LookupStats lookups;
};

// Thread-safe. submit(), poll() and stats() take a short lock and never wait for I/O. The buffer must
// stay valid until close() has returned: only then has the last operation on it ended.
class Engine {
 public:
  // Make the namespace's directory, try what works in it, start the threads. Blocks on the file system. Fails
  // when the directory cannot be made, when kUring was asked for and does not work, when kOwner was asked for
  // and somebody else uses it (EBUSY), or with EAGAIN when the system has no room for the threads.
  static Status open(EngineOptions options, PrimaryBuffer buffer, std::unique_ptr<Engine>& engine);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Accept a job; false after close(), and then nothing was taken. `chunk_ids` is empty for a
  // lookup and as long as the keys otherwise. An id outside the buffer is that key's EINVAL. Stores that
  // find the queue full are shed: EAGAIN.
  [[nodiscard]] bool submit(std::int64_t job_id, JobKind kind, PackedKeys keys,
                            std::vector<std::int64_t> chunk_ids);

  // From memory, at once; docs/lookup.md. Keys have kKeySizeMin to kKeySizeMax bytes.
  [[nodiscard]] Verdict lookup(std::string_view key) { return lookups_.lookup(key); }
  [[nodiscard]] std::size_t present_prefix(std::string_view packed, std::size_t key_size_bytes) const {
    return lookups_.present_prefix(packed, key_size_bytes);
  }
  void touch(std::string_view packed, std::size_t key_size_bytes);
  // What ask() will wait for first is on its way.
  void prefetch(std::string_view key) const { lookups_.prefetch(key); }
  // While this stays as it is, so does every kHit.
  [[nodiscard]] std::uint64_t losses() const { return lookups_.losses(); }
  // The same, and the disk is asked about what is not known: never kExpired.
  [[nodiscard]] Answer ask(std::string_view key, std::optional<index::Moment> waiting_since);
  // The disk is asked about a key, whatever is known of it.
  void ask_unseen(std::string_view key);
  // Ask the disk about a key; and hand the threads what was asked.
  void probe(std::string_view key);
  void submit_probes();

  // The keys that were evicted since the last call, or the last 65,536 of them.
  [[nodiscard]] std::vector<std::string> take_evicted() { return evictor_.take_evicted(); }

  // The jobs that ended since the last call, each exactly once over the engine's life, also after close().
  [[nodiscard]] std::vector<Completion> poll();

  // Wait until no accepted job is unfinished; false when `timeout` passed first.
  [[nodiscard]] bool drain(std::optional<Clock::duration> timeout);

  // Cancel queued ops (ECANCELED), wait for the running ones, join the threads; 0 then. Where a file system
  // does not answer before `patience` is over: how many jobs are unfinished, at least 1. Then this object and
  // the buffer have to stay, since the threads still use them. May be called again.
  [[nodiscard]] std::size_t close(std::optional<Clock::duration> patience);

  [[nodiscard]] EngineStats stats();

  // What the probe said: success is io_uring, a failure why it is not used; ECANCELED where psync was asked
  // for.
  [[nodiscard]] const Status& uring_status() const { return uring_status_; }

  // False in a forked child, which has a copy of this object and none of its threads. There no other
  // method may be called and the object must be leaked: destroying what threads wait on never returns.
  [[nodiscard]] bool in_owner_process() const;

 private:
  Engine(EngineOptions options, PrimaryBuffer buffer, const Status& uring_status,
         std::unique_ptr<layouts::FilesContext> context);

  // What a thread has done since it last held the mutex.
  struct Done {
    std::vector<std::shared_ptr<Job>> ended;
    std::size_t loads = 0;
    std::size_t stores = 0;
  };

  [[nodiscard]] QueueLimits queue_limits() const;
  // Whether ops of this kind go through the ring.
  [[nodiscard]] bool uses_window(JobKind kind) const;
  // Throws std::system_error where the system has no room for them all.
  void start_threads();
  void run();
  // With the mutex held: hand in what was done.
  void settle(Done& done);
  // With the mutex held: whether to wake one more thread. One at a time: it wakes the next if there is
  // still work, so that no more threads run than find something to do.
  [[nodiscard]] bool take_wake_up();
  [[nodiscard]] Claim claim_more(JobKind kind, std::size_t most, Done& done);
  void execute(const Claim& claim, Done& done);
  void execute_in_window(Claim claim, layouts::FilesWindow& window, Done& done);
  // Whether there is room for a store. If not, it has ended.
  [[nodiscard]] bool admit(const Claim& claim, std::size_t op, Done& done);
  Status execute_op(Job& job, std::size_t op, std::string& path, std::size_t& moved);
  Status answer_question(const Job& job, std::size_t op);
  // Tell the index what an op's end means.
  void note_end(const Job& job, std::size_t op, const Status& status);
  void finish_op(const std::shared_ptr<Job>& job, std::size_t op, const Status& status, std::size_t moved,
                 const std::string& path, Done& done);
  // The row of an op's chunk id; empty if the buffer has none.
  [[nodiscard]] std::span<std::byte> row_of(const Job& job, std::size_t op) const;
  [[nodiscard]] fs::RingMemory ring_memory() const;

  const EngineOptions options_;
  const PrimaryBuffer buffer_;
  const unsigned born_after_forks_;
  const Status uring_status_;
  const std::unique_ptr<layouts::FilesContext> context_;
  Lookups lookups_;
  Space space_;
  Evictor evictor_;
  StorePause pause_;
  // Registers the buffer once; the threads' rings clone from it. Carries no reads.
  fs::Ring donor_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_available_;
  std::condition_variable idle_;
  JobQueue queue_;
  std::vector<Completion> completions_;
  std::size_t inflight_jobs_ = 0;
  std::uint64_t shed_stores_ = 0;
  std::uint64_t paused_stores_ = 0;
  std::size_t waiting_threads_ = 0;
  bool wake_up_pending_ = false;
  bool stop_ = false;

  std::mutex close_mutex_;  // held while joining, so that a second close() waits for the first
  std::vector<std::thread> threads_;
  Crew crew_;
};

}  // namespace kvfs::jobs
