// The engine's threads and queues.
#include "jobs/engine.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvfs::jobs {

namespace {

// A lookup takes about a microsecond, less than claiming it: claim many at a time.
constexpr std::size_t kLookupsPerClaim = 64;

constexpr std::array kReadersPrefer{JobKind::kLookup, JobKind::kLoad, JobKind::kStore};
constexpr std::array kWritersPrefer{JobKind::kStore, JobKind::kLookup, JobKind::kLoad};

void name_thread(std::thread& thread, const char* role, std::size_t index) {
  // The kernel keeps 15 characters.
  const std::string name = std::string("kvfs-") + role + '-' + std::to_string(index);
  (void)::pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
}

}  // namespace

Engine::Engine(EngineOptions options, PrimaryBuffer buffer)
    : options_(std::move(options)),
      buffer_(buffer),
      thread_count_(options_.n_read_threads + options_.n_write_threads),
      owner_pid_(::getpid()),
      context_(options_.use_o_direct) {
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
  const std::size_t claims = kind == JobKind::kLookup ? (ops + kLookupsPerClaim - 1) / kLookupsPerClaim : ops;
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
}

bool Engine::in_owner_process() const { return ::getpid() == owner_pid_; }

EngineStats Engine::stats() {
  const std::lock_guard lock(mutex_);
  const auto& counters = context_.counters;
  return {context_.direct.fallbacks(), counters.duplicate_stores.load(), counters.healed_files.load(),
          counters.removed_files.load(), inflight_jobs_};
}

void Engine::run(Preference preference) {
  while (true) {
    Claim claimed;
    {
      std::unique_lock lock(mutex_);
      work_available_.wait(lock, [this] { return stop_ || has_work(); });
      if (stop_) return;
      claimed = claim(preference);
    }
    execute(claimed);
  }
}

bool Engine::has_work() const {
  return std::any_of(queues_.begin(), queues_.end(), [](const auto& queued) { return !queued.empty(); });
}

Engine::Claim Engine::claim(const Preference& preference) {
  for (const JobKind kind : preference) {
    auto& queued = queue(kind);
    if (queued.empty()) continue;
    const std::shared_ptr<Job> job = queued.front();
    const std::size_t begin = job->next_op;
    const std::size_t end =
        std::min(begin + (kind == JobKind::kLookup ? kLookupsPerClaim : 1), job->keys.count());
    job->next_op = end;
    if (end == job->keys.count()) queued.pop_front();
    return {job, begin, end};
  }
  return {};
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

Status Engine::execute_op(Job& job, std::size_t op, std::string& path, std::size_t& moved) {
  path = layouts::chunk_path(options_.base_path, job.keys.at(op));
  if (job.kind == JobKind::kLookup) return layouts::lookup_file(path, buffer_.chunk_size_bytes);

  const std::int64_t chunk_id = job.chunk_ids[op];
  if (chunk_id < 0 || static_cast<std::uint64_t>(chunk_id) >= buffer_.num_chunks) {
    path = "row " + std::to_string(chunk_id) + " of a buffer of " + std::to_string(buffer_.num_chunks);
    return Status::failure(EINVAL, job.kind == JobKind::kLoad ? "load" : "store");
  }
  const std::span<std::byte> bytes(
      buffer_.data + static_cast<std::size_t>(chunk_id) * buffer_.chunk_size_bytes, buffer_.chunk_size_bytes);
  if (job.kind == JobKind::kLoad) return layouts::load_file(context_, path, bytes, moved);
  return layouts::store_file(context_, layouts::temporary_path(path), path, bytes, moved);
}

void Engine::complete(Job& job) {
  const std::lock_guard lock(mutex_);
  completions_.push_back(job.take_completion());
  if (--inflight_jobs_ == 0) idle_.notify_all();
}

}  // namespace kvfs::jobs
