// What the engine's threads do.
#include <algorithm>
#include <cerrno>
#include <numeric>
#include <thread>
#include <utility>

#include "jobs/engine.hpp"
#include "jobs/threads.hpp"

namespace kvfs::jobs {

namespace {

// Transfers that one thread keeps in flight through its ring.
constexpr unsigned kWindowDepth = 32;

const char* step_name(JobKind kind) { return kind == JobKind::kLoad ? "load" : "store"; }

}  // namespace

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
    // Whoever was kept from a core in the middle of a question answers the first of them, as a rule: he must
    // not wait until all others are answered.
    if (kind == JobKind::kLookup) std::this_thread::yield();
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
  fs::Directory& directory = context_->directory;
  if (claim.job->kind == JobKind::kLookup) (void)directory.restore_if_removed(directory.restorations());
  for (std::size_t op = claim.begin; op < claim.end; ++op) {
    if (!admit(claim, op, done)) continue;
    if (claim.job->kind == JobKind::kStore) lookups_.store_begins(claim.job->keys.at(op));
    std::string path;
    std::size_t moved = 0;
    const Asker asker = claim.job->asker;
    const bool is_question = asker == Asker::kIndex || asker == Asker::kIndexUnseen;
    const Status status =
        is_question ? answer_question(*claim.job, op) : execute_op(*claim.job, op, path, moved);
    if (asker == Asker::kCheck) lookups_.checked(claim.job->keys.at(op), status);
    finish_op(claim.job, op, status, moved, path, done);
  }
}

bool Engine::admit(const Claim& claim, std::size_t op, Done& done) {
  if (claim.job->kind != JobKind::kStore || space_.reserve()) return true;
  ++done.stores;
  if (claim.job->refuse_op(op, EAGAIN, "because there is no room")) done.ended.push_back(claim.job);
  return false;
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
      if (!admit(claim, claim.begin, done)) continue;
      const std::span<std::byte> row = row_of(*claim.job, claim.begin);
      if (kind == JobKind::kStore) lookups_.store_begins(claim.job->keys.at(claim.begin));
      if (row.empty()) {
        finish_op(claim.job, claim.begin, Status::failure(EINVAL, step_name(kind)), 0, {}, done);
        continue;
      }
      const std::size_t tag = free_tags.back();
      free_tags.pop_back();
      pending[tag] = {claim.job, claim.begin};
      const std::string_view key = claim.job->keys.at(claim.begin);
      layouts::ChunkName chunk{layouts::chunk_path(key), key};
      if (kind == JobKind::kLoad) {
        window.start_load(std::move(chunk), row, tag);
      } else {
        window.start_store(std::move(chunk), row, tag);
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
  const layouts::ChunkName chunk{layouts::chunk_path(job.keys.at(op)), job.keys.at(op)};
  path = chunk.path;
  if (job.kind == JobKind::kLookup) return layouts::lookup_file(*context_, path, buffer_.chunk_size_bytes);
  const std::span<std::byte> row = row_of(job, op);
  if (row.empty()) return Status::failure(EINVAL, step_name(job.kind));
  if (job.kind == JobKind::kLoad) return layouts::load_file(*context_, chunk, row, moved);
  return layouts::store_file(*context_, layouts::temporary_for(*context_, path), chunk, row, moved);
}

void Engine::note_end(const Job& job, std::size_t op, const Status& status) {
  const std::string_view key = job.keys.at(op);
  if (job.kind == JobKind::kLoad) lookups_.load_ended(key, status);
  if (job.kind == JobKind::kStore) lookups_.store_ended(key, status, job.use_of(op));
}

void Engine::finish_op(const std::shared_ptr<Job>& job, std::size_t op, const Status& status,
                       std::size_t moved, const std::string& path, Done& done) {
  if (job->kind == JobKind::kLoad) ++done.loads;
  if (job->kind == JobKind::kStore) {
    ++done.stores;
    const bool is_new = status.ok() && moved > 0;
    // That a chunk is there already says nothing about the next store.
    if (is_new || !status.ok()) pause_.note(status);
    is_new ? space_.stored() : space_.cancelled();
  }
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
