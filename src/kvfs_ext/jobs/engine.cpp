// The engine's threads and queues.
#include "jobs/engine.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <system_error>
#include <utility>

#include "fs/ring_probe.hpp"

namespace kvfs::jobs {

namespace {

// A lookup takes about a microsecond, less than claiming it: claim many at a time.
constexpr std::size_t kLookupsPerClaim = 64;
// Reads that one thread keeps in flight: enough of them to share a system call among, and not so many
// that a job of large chunks stays with one thread.
constexpr unsigned kWindowDepth = 16;
constexpr std::size_t kWindowBytes = std::size_t{16} << 20;

constexpr std::array kReadersPrefer{JobKind::kLookup, JobKind::kLoad, JobKind::kStore};
constexpr std::array kWritersPrefer{JobKind::kStore, JobKind::kLookup, JobKind::kLoad};

void name_thread(std::thread& thread, const char* role, std::size_t index) {
  // The kernel keeps 15 characters.
  const std::string name = std::string("kvfs-") + role + '-' + std::to_string(index);
  (void)::pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
}

}  // namespace

Status Engine::open(EngineOptions options, PrimaryBuffer buffer, std::unique_ptr<Engine>& engine) {
  if (const Status made = fs::make_directories(options.base_path); !made.ok()) return made;
  Status uring = Status::failure(ECANCELED, "probe");
  if (options.io_engine != IoEngine::kPsync) uring = fs::probe_ring(options.base_path, options.use_o_direct);
  if (options.io_engine == IoEngine::kUring && !uring.ok()) return uring;
  try {
    engine.reset(new Engine(std::move(options), buffer, uring));
  } catch (const std::system_error& error) {
    return Status::failure(error.code().value(), "starting threads");
  }
  return Status::success();
}

Engine::Engine(EngineOptions options, PrimaryBuffer buffer, const Status& uring_status)
    : options_(std::move(options)),
      buffer_(buffer),
      thread_count_(options_.n_read_threads + options_.n_write_threads),
      owner_pid_(::getpid()),
      uring_status_(uring_status),
      context_(options_.use_o_direct) {
  if (uring_status_.ok()) (void)fs::Ring::create(1, ring_memory(), nullptr, donor_);
  threads_.reserve(thread_count_);
  try {
    for (std::size_t i = 0; i < options_.n_read_threads; ++i) {
      threads_.emplace_back([this] { run(kReadersPrefer); });
      name_thread(threads_.back(), "read", i);
    }
    for (std::size_t i = 0; i < options_.n_write_threads; ++i) {
      threads_.emplace_back([this] { run(kWritersPrefer); });
      name_thread(threads_.back(), "write", i);
    }
  } catch (...) {
    // The system gave fewer threads than asked for: end those that run, then report.
    close();
    throw;
  }
}

Engine::~Engine() { close(); }

bool Engine::submit(std::int64_t job_id, JobKind kind, PackedKeys keys, std::vector<std::int64_t> chunk_ids) {
  const auto job = std::make_shared<Job>(job_id, kind, std::move(keys), std::move(chunk_ids));
  const std::size_t ops = job->keys.count();
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    if (ops == 0) {
      completions_.push_back(job->take_completion());
      return true;
    }
    ++inflight_jobs_;
    queue(kind).push_back(job);
  }
  const std::size_t per_claim = ops_per_claim(kind);
  const std::size_t claims = (ops + per_claim - 1) / per_claim;
  if (claims >= thread_count_) {
    work_available_.notify_all();
  } else {
    for (std::size_t i = 0; i < claims; ++i) work_available_.notify_one();
  }
  return true;
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
  std::vector<Claim> cancelled;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (auto& queued : queues_) {
      for (const auto& job : queued) cancelled.push_back({job, job->next_op, job->keys.count()});
      queued.clear();
    }
  }
  work_available_.notify_all();
  for (const Claim& claim : cancelled) {
    for (std::size_t op = claim.begin; op < claim.end; ++op) {
      if (claim.job->finish_op(op, Status::failure(ECANCELED, "start"), 0, {})) complete(*claim.job);
    }
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  // Its registered buffers pin the primary tier's pages.
  donor_ = fs::Ring();
}

bool Engine::in_owner_process() const { return ::getpid() == owner_pid_; }

EngineStats Engine::stats() {
  const std::lock_guard lock(mutex_);
  const auto& counters = context_.counters;
  return {context_.direct.fallbacks(), counters.duplicate_stores.load(), counters.healed_files.load(),
          counters.removed_files.load(), inflight_jobs_};
}

void Engine::run(Preference preference) {
  // Made on the thread that uses it, when its first load comes.
  std::unique_ptr<layouts::FilesWindow> window;
  bool window_wanted = uring_status_.ok();
  while (true) {
    Claim claimed;
    {
      std::unique_lock lock(mutex_);
      work_available_.wait(lock, [this] { return stop_ || has_work(); });
      if (stop_) return;
      claimed = claim(preference);
    }
    if (claimed.job->kind == JobKind::kLoad && window_wanted && window == nullptr) {
      window = layouts::FilesWindow::create(context_, kWindowDepth, ring_memory(), &donor_);
      window_wanted = window != nullptr;
    }
    if (claimed.job->kind == JobKind::kLoad && window != nullptr) {
      execute_loads(std::move(claimed), *window, preference);
    } else {
      execute(claimed);
    }
  }
}

bool Engine::has_work() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& queued) { return !queued.empty(); });
}

std::size_t Engine::ops_per_claim(JobKind kind) const {
  if (kind == JobKind::kLookup) return kLookupsPerClaim;
  if (kind == JobKind::kStore || !uring_status_.ok()) return 1;
  return std::clamp<std::size_t>(kWindowBytes / buffer_.chunk_size_bytes, 1, kWindowDepth);
}

Engine::Claim Engine::claim(const Preference& preference) {
  for (const JobKind kind : preference) {
    auto& queued = queue(kind);
    if (queued.empty()) continue;
    const std::shared_ptr<Job> job = queued.front();
    const std::size_t begin = job->next_op;
    const std::size_t end = std::min(begin + ops_per_claim(kind), job->keys.count());
    job->next_op = end;
    if (end == job->keys.count()) queued.pop_front();
    return {job, begin, end};
  }
  return {};
}

Engine::Claim Engine::claim_more_loads(const Preference& preference) {
  const std::lock_guard lock(mutex_);
  if (stop_ || queue(JobKind::kLoad).empty()) return {};
  const bool prefers_stores = preference.front() == JobKind::kStore;
  if (prefers_stores && !queue(JobKind::kStore).empty()) return {};
  return claim({JobKind::kLoad, JobKind::kLoad, JobKind::kLoad});
}

void Engine::execute(const Claim& claim) {
  Job& job = *claim.job;
  job.started();
  for (std::size_t op = claim.begin; op < claim.end; ++op) {
    std::string path;
    std::size_t moved = 0;
    const Status status = execute_op(job, op, path, moved);
    if (job.finish_op(op, status, moved, path)) complete(job);
  }
}

void Engine::execute_loads(Claim claimed, layouts::FilesWindow& window, const Preference& preference) {
  struct Pending {
    std::shared_ptr<Job> job;
    std::size_t op = 0;
  };
  std::vector<Pending> pending(kWindowDepth);
  std::vector<std::size_t> free_tags(kWindowDepth);
  std::iota(free_tags.begin(), free_tags.end(), std::size_t{0});
  do {
    if (claimed.begin == claimed.end && !window.full()) {
      claimed = claim_more_loads(preference);
      if (claimed.job != nullptr) claimed.job->started();
    }
    for (; claimed.begin < claimed.end && !window.full(); ++claimed.begin) {
      Job& job = *claimed.job;
      std::string path;
      const std::span<std::byte> row = row_of(job, claimed.begin, path);
      if (row.empty()) {
        if (job.finish_op(claimed.begin, Status::failure(EINVAL, "load"), 0, path)) complete(job);
        continue;
      }
      const std::size_t tag = free_tags.back();
      free_tags.pop_back();
      pending[tag] = {claimed.job, claimed.begin};
      window.start(layouts::chunk_path(options_.base_path, job.keys.at(claimed.begin)), row, tag);
    }
    window.wait();
    for (const auto& result : window.results()) {
      const Pending done = std::exchange(pending[result.tag], {});
      free_tags.push_back(result.tag);
      if (done.job->finish_op(done.op, result.status, result.moved, result.path)) complete(*done.job);
    }
  } while (!window.empty() || claimed.begin < claimed.end);
}

Status Engine::execute_op(Job& job, std::size_t op, std::string& path, std::size_t& moved) {
  if (job.kind == JobKind::kLookup) {
    path = layouts::chunk_path(options_.base_path, job.keys.at(op));
    return layouts::lookup_file(path, buffer_.chunk_size_bytes);
  }
  const std::span<std::byte> row = row_of(job, op, path);
  if (row.empty()) return Status::failure(EINVAL, job.kind == JobKind::kLoad ? "load" : "store");
  path = layouts::chunk_path(options_.base_path, job.keys.at(op));
  if (job.kind == JobKind::kLoad) return layouts::load_file(context_, path, row, moved);
  return layouts::store_file(context_, layouts::temporary_path(path), path, row, moved);
}

std::span<std::byte> Engine::row_of(const Job& job, std::size_t op, std::string& path) const {
  const std::int64_t chunk_id = job.chunk_ids[op];
  if (chunk_id < 0 || static_cast<std::uint64_t>(chunk_id) >= buffer_.num_chunks) {
    path = "row " + std::to_string(chunk_id) + " of a buffer of " + std::to_string(buffer_.num_chunks);
    return {};
  }
  return {buffer_.data + static_cast<std::size_t>(chunk_id) * buffer_.chunk_size_bytes,
          buffer_.chunk_size_bytes};
}

fs::RingMemory Engine::ring_memory() const {
  return {{buffer_.data, buffer_.num_chunks * buffer_.chunk_size_bytes}, buffer_.chunk_size_bytes};
}

void Engine::complete(Job& job) {
  const std::lock_guard lock(mutex_);
  completions_.push_back(job.take_completion());
  if (--inflight_jobs_ == 0) idle_.notify_all();
}

}  // namespace kvfs::jobs
