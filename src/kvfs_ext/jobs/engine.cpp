// The engine's threads.
#include "jobs/engine.hpp"

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <system_error>
#include <utility>

#include "fs/publish.hpp"
#include "fs/ring_probe.hpp"
#include "jobs/threads.hpp"

namespace kvfs::jobs {

namespace {

// A lookup takes about a microsecond, less than claiming it: claim many at a time.
constexpr std::size_t kLookupsPerClaim = 64;
// Transfers that one thread keeps in flight through its ring, and how many loads it opens before the kernel
// gets them and another thread may take the next ones.
constexpr unsigned kWindowDepth = 32;
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

const char* step_name(JobKind kind) { return kind == JobKind::kLoad ? "load" : "store"; }

}  // namespace

Status Engine::open(EngineOptions options, PrimaryBuffer buffer, std::unique_ptr<Engine>& engine) {
  auto context = std::make_unique<layouts::FilesContext>(options.use_o_direct);
  if (const Status opened = context->directory.open(options.base_path); !opened.ok()) return opened;
  context->directory.make_room_for_descriptors(kDescriptors);
  Status uring = Status::failure(ECANCELED, "probe");
  if (options.io_engine != IoEngine::kPsync) uring = fs::probe_ring(context->directory, options.use_o_direct);
  if (options.io_engine == IoEngine::kUring && !uring.ok()) return uring;
  context->publish = fs::probe_publish(context->directory);
  std::unique_ptr<Engine> opened(new Engine(std::move(options), buffer, uring, std::move(context)));
  if (const Status alone = opened->lookups_.open(); !alone.ok()) return alone;
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
      lookups_(context_->directory, {options_.sharing, options_.negative_ttl_s, buffer_.chunk_size_bytes}),
      queue_(queue_limits()) {
  if (uring_status_.ok()) (void)fs::Ring::create(1, ring_memory(), nullptr, donor_);
}

void Engine::start_threads() {
  threads_.reserve(options_.n_threads);
  for (std::size_t i = 0; i < options_.n_threads; ++i) {
    threads_.emplace_back([this] { run(); });
    name_thread(threads_.back(), "kvfs-io-" + std::to_string(i));
  }
  lookups_.start();
}

Engine::~Engine() { close(); }

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
  for (std::size_t op = 0; kind == JobKind::kLoad && op < ops; ++op)
    lookups_.load_submitted(job->keys.at(op));
  bool wake_up = false;
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    ++inflight_jobs_;
    const std::size_t accepted = queue_.push(job);
    Done done;
    if (ops == 0) done.ended.push_back(job);
    for (std::size_t op = accepted; op < ops; ++op) {
      ++shed_stores_;
      if (job->refuse_op(op, EAGAIN, "because the queue was full")) done.ended.push_back(job);
    }
    settle(done);
    wake_up = take_wake_up();
  }
  if (wake_up) work_available_.notify_one();
  return true;
}

void Engine::touch(std::string_view packed, std::size_t key_size_bytes) {
  for (std::size_t at = 0; at < packed.size(); at += key_size_bytes)
    lookups_.touch(packed.substr(at, key_size_bytes));
}

Verdict Engine::ask(std::string_view key, std::optional<index::Moment> waiting_since) {
  bool due = false;
  const Verdict verdict = lookups_.ask(key, waiting_since, due);
  if (due) submit_probes();
  return verdict;
}

void Engine::probe(std::string_view key) {
  if (lookups_.probe(key)) submit_probes();
}

void Engine::submit_probes() {
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

void Engine::close() {
  const std::lock_guard closing(close_mutex_);
  lookups_.stop();
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
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  // Its registered buffers pin the primary tier's pages.
  donor_ = fs::Ring();
  lookups_.close();
  context_->directory.close();
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
  stats.peak_inflight_read_bytes = queue_.peak_loads() * buffer_.chunk_size_bytes;
  stats.peak_inflight_write_bytes = queue_.peak_stores() * buffer_.chunk_size_bytes;
  stats.inflight_jobs = inflight_jobs_;
  stats.lookups = lookups_.stats();
  return stats;
}

void Engine::run() {
  yield_to_others();
  // Made when the thread first needs it: most of the time few threads do all the work.
  std::unique_ptr<layouts::FilesWindow> window;
  bool may_have_window = true;
  Done done;
  std::unique_lock lock(mutex_);
  while (true) {
    settle(done);
    while (!stop_ && !queue_.has_claimable()) {
      ++waiting_threads_;
      work_available_.wait(lock);
      --waiting_threads_;
      wake_up_pending_ = false;
    }
    if (stop_) return;
    Claim claim = queue_.claim();
    const bool wake_up = take_wake_up();
    lock.unlock();
    if (wake_up) work_available_.notify_one();
    const JobKind kind = claim.job->kind;
    if (window == nullptr && may_have_window && uses_window(kind)) {
      window = layouts::FilesWindow::create(*context_, kWindowDepth, ring_memory(), &donor_);
      may_have_window = window != nullptr;
    }
    if (window != nullptr && uses_window(kind)) {
      execute_in_window(std::move(claim), *window, done);
    } else {
      execute(claim, done);
    }
    // A thread that waits keeps no job alive.
    claim = {};
    lock.lock();
    queue_.put_down(kind);
  }
}

void Engine::settle(Done& done) {
  queue_.release(JobKind::kLoad, std::exchange(done.loads, 0));
  queue_.release(JobKind::kStore, std::exchange(done.stores, 0));
  for (const auto& job : done.ended) {
    if (job->asker == Asker::kCaller) completions_.push_back(job->take_completion());
    if (--inflight_jobs_ == 0) idle_.notify_all();
  }
  done.ended.clear();
}

bool Engine::take_wake_up() {
  if (wake_up_pending_ || waiting_threads_ == 0 || !queue_.has_claimable()) return false;
  return wake_up_pending_ = true;
}

Claim Engine::claim_more(JobKind kind, std::size_t most, Done& done) {
  Claim claim;
  bool wake_up = false;
  {
    const std::lock_guard lock(mutex_);
    settle(done);
    claim = queue_.claim_more(kind, most);
    wake_up = take_wake_up();
  }
  if (wake_up) work_available_.notify_one();
  if (claim.job != nullptr) claim.job->started();
  return claim;
}

void Engine::execute(const Claim& claim, Done& done) {
  claim.job->started();
  if (claim.job->kind == JobKind::kLookup) (void)context_->directory.restore_if_removed();
  for (std::size_t op = claim.begin; op < claim.end; ++op) {
    if (claim.job->kind == JobKind::kStore) lookups_.store_begins(claim.job->keys.at(op));
    std::string path;
    std::size_t moved = 0;
    const Status status = claim.job->asker == Asker::kIndex ? answer_question(*claim.job, op)
                                                            : execute_op(*claim.job, op, path, moved);
    if (claim.job->asker == Asker::kCheck) lookups_.checked(claim.job->keys.at(op), status);
    finish_op(claim.job, op, status, moved, path, done);
  }
}

Status Engine::answer_question(const Job& job, std::size_t op) {
  const std::string_view key = job.keys.at(op);
  const std::chrono::duration<double> accepted_at = job.accepted_at.time_since_epoch();
  const auto generation = lookups_.take_up(key, index::moment_at(accepted_at.count()));
  if (!generation) return Status::success();
  const index::Moment looked_at = index::now();
  const Status status = layouts::lookup_file(*context_, layouts::chunk_path(key), buffer_.chunk_size_bytes);
  lookups_.answer(key, *generation, status, looked_at);
  return status;
}

void Engine::execute_in_window(Claim claim, layouts::FilesWindow& window, Done& done) {
  const JobKind kind = claim.job->kind;
  struct Pending {
    std::shared_ptr<Job> job;
    std::size_t op = 0;
  };
  std::vector<Pending> pending(kWindowDepth);
  std::vector<std::size_t> free_tags(kWindowDepth);
  std::iota(free_tags.begin(), free_tags.end(), std::size_t{0});
  claim.job->started();
  while (!claim.empty() || !window.empty()) {
    const bool came_with_more = !claim.empty();
    for (; !claim.empty(); ++claim.begin) {
      const std::span<std::byte> row = row_of(*claim.job, claim.begin);
      if (kind == JobKind::kStore) lookups_.store_begins(claim.job->keys.at(claim.begin));
      if (row.empty()) {
        finish_op(claim.job, claim.begin, Status::failure(EINVAL, step_name(kind)), 0, {}, done);
        continue;
      }
      const std::size_t tag = free_tags.back();
      free_tags.pop_back();
      pending[tag] = {claim.job, claim.begin};
      std::string path = layouts::chunk_path(claim.job->keys.at(claim.begin));
      if (kind == JobKind::kLoad) {
        window.start_load(std::move(path), row, tag);
      } else {
        window.start_store(std::move(path), row, tag);
      }
    }
    // While there is more to open or to make, the disk works on what it has.
    window.progress(!came_with_more || window.full());
    for (const auto& result : window.results()) {
      const Pending ended = std::exchange(pending[result.tag], {});
      free_tags.push_back(result.tag);
      finish_op(ended.job, ended.op, result.status, result.moved, result.path, done);
    }
    claim = claim_more(kind, free_tags.size(), done);
  }
}

Status Engine::execute_op(Job& job, std::size_t op, std::string& path, std::size_t& moved) {
  path = layouts::chunk_path(job.keys.at(op));
  if (job.kind == JobKind::kLookup) return layouts::lookup_file(*context_, path, buffer_.chunk_size_bytes);
  const std::span<std::byte> row = row_of(job, op);
  if (row.empty()) return Status::failure(EINVAL, step_name(job.kind));
  if (job.kind == JobKind::kLoad) return layouts::load_file(*context_, path, row, moved);
  return layouts::store_file(*context_, layouts::temporary_for(*context_, path), path, row, moved);
}

void Engine::note_end(const Job& job, std::size_t op, const Status& status) {
  const std::string_view key = job.keys.at(op);
  if (job.kind == JobKind::kLoad) lookups_.load_ended(key, status);
  if (job.kind == JobKind::kStore) lookups_.store_ended(key, status);
}

void Engine::finish_op(const std::shared_ptr<Job>& job, std::size_t op, const Status& status,
                       std::size_t moved, const std::string& path, Done& done) {
  if (job->kind == JobKind::kLoad) ++done.loads;
  if (job->kind == JobKind::kStore) ++done.stores;
  note_end(*job, op, status);
  std::string place;
  if (!status.ok() && job->kind != JobKind::kLookup) {
    place = row_of(*job, op).empty() ? "row " + std::to_string(job->chunk_ids[op]) + " of a buffer of " +
                                           std::to_string(buffer_.num_chunks)
                                     : context_->directory.path_of(path);
  }
  if (job->finish_op(op, status, moved, place)) done.ended.push_back(job);
}

std::span<std::byte> Engine::row_of(const Job& job, std::size_t op) const {
  const std::int64_t chunk_id = job.chunk_ids[op];
  if (chunk_id < 0 || static_cast<std::uint64_t>(chunk_id) >= buffer_.num_chunks) return {};
  return {buffer_.data + static_cast<std::size_t>(chunk_id) * buffer_.chunk_size_bytes,
          buffer_.chunk_size_bytes};
}

fs::RingMemory Engine::ring_memory() const {
  return {{buffer_.data, buffer_.num_chunks * buffer_.chunk_size_bytes}, buffer_.chunk_size_bytes};
}

}  // namespace kvfs::jobs
