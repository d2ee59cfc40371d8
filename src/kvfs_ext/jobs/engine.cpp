// The engine: starting, taking jobs, ending.
#include "jobs/engine.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "fs/publish.hpp"
#include "fs/ring_probe.hpp"
#include "jobs/threads.hpp"

namespace kvfs::jobs {

namespace {

// A lookup takes about a microsecond, less than claiming it: claim many at a time.
constexpr std::size_t kLookupsPerClaim = 64;
// Loads that a thread opens before the kernel gets them and another thread may take the next ones.
constexpr std::size_t kLoadsPerClaim = 8;
// Each load or store in flight has a file open, and processes often may have no more than 1024.
constexpr std::size_t kInflightOpsMax = 256;
constexpr int kDescriptors = 1000;
// Stores of smaller chunks cost less CPU time when a plain write moves them, see docs/performance.md.
constexpr std::size_t kWindowStoreBytesMin = std::size_t{256} << 10;
// What a job gets before the next one has its turn. Shorter jobs run one after the other, which ends the
// first of them sooner than if all took turns.
constexpr std::size_t kTurnBytes = std::size_t{32} << 20;
constexpr std::size_t kTurnOps = 16;
// Part of the write budget and of the threads that stores keep beside loads.
constexpr std::size_t kShareBesideLoads = 8;
// One thread in so many is kept from stores, which may all hang in a slow file system.
constexpr std::size_t kThreadsPerReserved = 4;

}  // namespace

Status Engine::open(EngineOptions options, PrimaryBuffer buffer, std::unique_ptr<Engine>& engine) {
  auto context = std::make_unique<layouts::FilesContext>(options.use_o_direct);
  const Status found = context->directory.open(options.base_path, options.modes);
  if (!found.ok()) return found;
  context->directory.make_room_for_descriptors(kDescriptors);
  // Before the first temporary: another engine's scan would take it for an orphan.
  const Status alone =
      context->ownership.acquire(context->directory, options.sharing, layouts::writer_number());
  if (!alone.ok()) return alone;
  const auto probe = [] { return layouts::temporary_path(".kvfs_probe"); };
  Status uring = Status::failure(ECANCELED, "probe");
  if (options.io_engine != IoEngine::kPsync)
    uring = fs::probe_ring(context->directory, probe(), options.use_o_direct);
  if (options.io_engine == IoEngine::kUring && !uring.ok()) return uring;
  context->publish = fs::probe_publish(context->directory, probe());
  const Status sealing = context->seals.open(context->directory, probe(), options.checksum);
  if (!sealing.ok()) return sealing;
  std::unique_ptr<Engine> opened(new Engine(std::move(options), buffer, uring, std::move(context)));
  opened->lookups_.open();
  if (opened->space_.enabled()) {
    Evictor& evictor = opened->evictor_;
    Space& space = opened->space_;
    opened->context_->on_removed = [&evictor](const std::string& path, std::uint64_t bytes) {
      evictor.removed(path, bytes);
    };
    opened->context_->on_directory_made = [&space] { space.made_directory(); };
    const Status joined = opened->space_.open(opened->options_.space_root, opened->options_.modes);
    if (!joined.ok()) return joined;
  }
  try {
    opened->start_threads();
  } catch (const std::system_error& error) {
    // The system gave fewer threads than asked for: those that run end with the engine.
    return Status::failure(error.code().value(), "starting threads");
  }
  engine = std::move(opened);
  return Status::success();
}

Engine::Engine(EngineOptions options, PrimaryBuffer buffer, const Status& uring_status,
               std::unique_ptr<layouts::FilesContext> context)
    : options_(std::move(options)),
      buffer_(buffer),
      born_after_forks_(forks()),
      uring_status_(uring_status),
      context_(std::move(context)),
      lookups_(*context_, {options_.negative_ttl_s, buffer_.chunk_size_bytes}),
      space_(options_.limits, buffer_.chunk_size_bytes),
      evictor_(*context_, lookups_, space_),
      queue_(queue_limits()) {
  if (uring_status_.ok()) (void)fs::Ring::create(1, ring_memory(), nullptr, donor_);
}

void Engine::start_threads() {
  threads_.reserve(options_.n_threads);
  for (std::size_t i = 0; i < options_.n_threads; ++i) {
    threads_.push_back(crew_.start("kvfs-io-" + std::to_string(i), [this] { run(); }));
  }
  lookups_.start(crew_);
  evictor_.start(crew_);
}

Engine::~Engine() { (void)close(std::nullopt); }

QueueLimits Engine::queue_limits() const {
  const auto chunks = [this](std::uint64_t bytes) {
    return static_cast<std::size_t>(std::max<std::uint64_t>(1, bytes / buffer_.chunk_size_bytes));
  };
  QueueLimits limits;
  limits.loads_in_flight = std::min(kInflightOpsMax, chunks(options_.max_inflight_read_bytes));
  limits.stores_in_flight = std::min(kInflightOpsMax, chunks(options_.max_inflight_write_bytes));
  limits.stores_beside_loads = std::max<std::size_t>(1, limits.stores_in_flight / kShareBesideLoads);
  limits.storing_threads = options_.n_threads - options_.n_threads / kThreadsPerReserved;
  limits.storing_threads_beside_loads = std::max<std::size_t>(1, options_.n_threads / kShareBesideLoads);
  limits.queued_stores = chunks(options_.max_queued_store_bytes);
  limits.lookups_per_claim = kLookupsPerClaim;
  limits.loads_per_claim = uring_status_.ok() ? kLoadsPerClaim : 1;
  limits.turn = std::max(kTurnOps, chunks(kTurnBytes));
  return limits;
}

bool Engine::uses_window(JobKind kind) const {
  if (!uring_status_.ok()) return false;
  return kind == JobKind::kLoad ||
         (kind == JobKind::kStore && buffer_.chunk_size_bytes >= kWindowStoreBytesMin);
}

bool Engine::submit(std::int64_t job_id, JobKind kind, PackedKeys keys, std::vector<std::int64_t> chunk_ids) {
  const auto job = std::make_shared<Job>(job_id, kind, std::move(keys), std::move(chunk_ids));
  const std::size_t ops = job->keys.count();
  job->last_key_use = lookups_.take_uses(ops);
  for (std::size_t op = 0; kind == JobKind::kLoad && op < ops; ++op)
    lookups_.load_submitted(job->keys.at(op), job->use_of(op));
  const bool paused = kind == JobKind::kStore && ops > 0 && !pause_.admits();
  bool wake_up = false;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    ++inflight_jobs_;
    const std::size_t accepted = paused ? 0 : queue_.push(job);
    Done done;
    if (ops == 0) done.ended.push_back(job);
    (paused ? paused_stores_ : shed_stores_) += ops - accepted;
    for (std::size_t op = accepted; op < ops; ++op) {
      const char* const reason = paused ? "because the disk takes none now" : "because the queue was full";
      if (job->refuse_op(op, EAGAIN, reason)) done.ended.push_back(job);
    }
    settle(done);
    wake_up = take_wake_up();
  }
  if (wake_up) work_available_.notify_one();
  return true;
}

void Engine::touch(std::string_view packed, std::size_t key_size_bytes) {
  const std::size_t count = packed.size() / key_size_bytes;
  const index::Use uses = lookups_.take_uses(count);
  for (std::size_t i = 0; i < count; ++i)
    lookups_.touch(packed.substr(i * key_size_bytes, key_size_bytes), uses + count - 1 - i);
}

Answer Engine::ask(std::string_view key, std::optional<index::Moment> waiting_since) {
  const Answer answer = lookups_.ask(key, waiting_since);
  if (answer.due) submit_probes();
  return answer;
}

void Engine::ask_unseen(std::string_view key) {
  if (lookups_.ask_unseen(key)) submit_probes();
}

void Engine::probe(std::string_view key) {
  if (lookups_.probe(key)) submit_probes();
}

void Engine::submit_probes() {
  if (!lookups_.has_questions()) return;
  bool wake_up = false;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    for (Questions& questions : lookups_.take_probes()) {
      ++inflight_jobs_;
      (void)queue_.push(std::make_shared<Job>(0, JobKind::kLookup, std::move(questions.keys),
                                              std::vector<std::int64_t>(), questions.asker));
    }
    wake_up = take_wake_up();
  }
  if (wake_up) work_available_.notify_one();
}

std::vector<Completion> Engine::poll() {
  const std::lock_guard lock(mutex_);
  return std::exchange(completions_, {});
}

bool Engine::drain(std::optional<Clock::duration> timeout) {
  std::unique_lock lock(mutex_);
  const auto done = [this] { return inflight_jobs_ == 0; };
  if (timeout) return idle_.wait_for(lock, *timeout, done);
  idle_.wait(lock, done);
  return true;
}

std::size_t Engine::close(std::optional<Clock::duration> patience) {
  const std::lock_guard closing(close_mutex_);
  evictor_.ask_to_stop();
  lookups_.ask_to_stop();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    Done done;
    for (const Claim& claim : queue_.take_all()) {
      for (std::size_t op = claim.begin; op < claim.end; ++op) {
        if (claim.job->kind == JobKind::kLoad)
          lookups_.load_ended(claim.job->keys.at(op), Status::failure(ECANCELED, "load"));
        if (claim.job->refuse_op(op, ECANCELED, "because the engine was closed before it started"))
          done.ended.push_back(claim.job);
      }
    }
    settle(done);
  }
  work_available_.notify_all();
  if (!crew_.wait(patience)) {
    const std::lock_guard lock(mutex_);
    // It may be the scan that hangs, or an eviction.
    return std::max<std::size_t>(1, inflight_jobs_);
  }
  evictor_.stop();
  lookups_.stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  // Its registered buffers pin the primary tier's pages.
  donor_ = fs::Ring();
  lookups_.close();
  space_.close();
  context_->directory.close();
  return 0;
}

bool Engine::in_owner_process() const { return forks() == born_after_forks_; }

EngineStats Engine::stats() {
  const std::lock_guard lock(mutex_);
  const auto& counters = context_->counters;
  EngineStats stats;
  stats.direct_fallbacks = context_->direct.fallbacks();
  stats.duplicate_stores = counters.duplicate_stores.load();
  stats.healed_files = counters.healed_files.load();
  stats.removed_files = counters.removed_files.load();
  stats.shed_stores = shed_stores_;
  stats.paused_stores = paused_stores_;
  stats.evicted = evictor_.stats();
  stats.space = space_.stats();
  stats.seals = context_->seals.enabled() ? 1 : 0;
  stats.verified_loads = context_->seals.verified_loads.load();
  stats.unverified_loads = context_->seals.unverified_loads.load();
  stats.damaged_chunks = context_->seals.damaged_chunks.load();
  stats.peak_inflight_read_bytes = queue_.peak_loads() * buffer_.chunk_size_bytes;
  stats.peak_inflight_write_bytes = queue_.peak_stores() * buffer_.chunk_size_bytes;
  stats.inflight_jobs = inflight_jobs_;
  stats.lookups = lookups_.stats();
  return stats;
}

}  // namespace kvfs::jobs
