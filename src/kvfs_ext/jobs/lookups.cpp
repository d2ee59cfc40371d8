// Verdicts, probes, scan and snapshot.
#include "jobs/lookups.hpp"

#include <cerrno>
#include <utility>

#include "fs/file.hpp"
#include "jobs/threads.hpp"
#include "layouts/files_scan.hpp"

namespace kvfs::jobs {

namespace {

// A probe takes about a microsecond. So many are worth a thread's waking up, and more would keep the first
// waiting.
constexpr std::size_t kProbesPerBatch = 64;
// A disk that does not answer is asked the same again at every step: 2.4 MB of keys, and no more.
constexpr std::size_t kOutstandingMax = 65'536;
static_assert(index::kKeySizeMax == layouts::kKeySizeMax);

// Whether a load failed because there is no chunk of the right size.
bool proves_absence(const Status& status) {
  return status.code == ENOENT || status.code == EBADMSG || status.code == EISDIR || status.code == ELOOP;
}

}  // namespace

Lookups::Lookups(layouts::FilesContext& context, const LookupOptions& options)
    : context_(context), options_(options), index_(options.negative_ttl_s) {}

void Lookups::open() {
  has_snapshot_ = snapshot_.open(context_.directory);
  index_.set_scanning(true);
}

void Lookups::start(Crew& crew) {
  scanner_ = crew.start("kvfs-scan", [this] {
    yield_to_others();
    read_all();
  });
}

void Lookups::stop() {
  ask_to_stop();
  if (scanner_.joinable()) scanner_.join();
}

void Lookups::read_all() {
  if (has_snapshot_) {
    const index::SnapshotTerms terms{options_.chunk_size_bytes,
                                     layouts::first_level_digest(context_.directory)};
    if (snapshot_.read(index_, terms, stop_) && context_.ownership.owner()) complete_ = true;
    snapshot_ = {};
  }
  const bool whole = scan(true);
  if (whole) index_.drop_hints();
  if (!stop_) complete_ = whole;
  scanned_ = whole;
  index_.set_scanning(false);
}

void Lookups::learn() {
  if (scanned_) (void)scan(false);
}

bool Lookups::scan(bool counts) {
  const layouts::FilesScan scan{options_.chunk_size_bytes, stop_,
                                [this, counts](std::string_view key, std::uint64_t written_s) {
                                  // A clock that is far off must not make a file newer than all uses.
                                  index_.add(key, options_.chunk_size_bytes, written_s & 0xffffffffU);
                                  if (counts) scanned_files_.fetch_add(1, std::memory_order_relaxed);
                                },
                                [this](const std::string& path) { reclaim(path); },
                                // Left by who was killed before it could be removed.
                                [this](const std::string& path) {
                                  if (context_.on_removed) context_.on_removed(path, 0);
                                }};
  return layouts::scan_files(context_.directory, scan);
}

void Lookups::close() {
  stop();
  if (scanned_ && index_.present() > 0 && context_.ownership.confirm_now()) {
    const index::SnapshotTerms terms{options_.chunk_size_bytes,
                                     layouts::first_level_digest(context_.directory)};
    (void)index::write_snapshot(context_.directory, layouts::temporary_path("kvfs.index"), index_, terms,
                                !forgot_);
  }
  context_.ownership.release();
}

void Lookups::reclaim(const std::string& path) {
  const std::optional<std::uint64_t> writer = layouts::writer_of(path);
  if (!writer || context_.ownership.is_alive(*writer)) return;
  const int at = context_.directory.at();
  fs::Entry entry;
  bool was_there = false;
  (void)fs::inspect(at, path, entry);
  (void)fs::remove(at, path, was_there);
  if (!was_there) return;
  reclaimed_.fetch_add(1, std::memory_order_relaxed);
  // What lies beside the first level was not reserved.
  const bool is_chunk = path.find('/') != std::string::npos;
  if (is_chunk && context_.on_removed) context_.on_removed(path, layouts::counted_bytes(entry.size_bytes));
}

Verdict Lookups::verdict(std::string_view key, std::optional<index::Moment> waiting_since) {
  // Before the look: the last keys of the scan may come in between.
  const bool complete = complete_.load(std::memory_order_acquire);
  const index::Known known = index_.find(key, waiting_since);
  if (known == index::Known::kPresent) return Verdict::kHit;
  if (known == index::Known::kAsked) return Verdict::kRetry;
  if (known == index::Known::kAbsent) {
    if (complete && context_.ownership.owner()) check_later(key);
    return Verdict::kMiss;
  }
  if (complete && context_.ownership.confirm()) {
    // The file of a failed load may still be there, which says nothing about other writers.
    if (known != index::Known::kForgotten) check_later(key);
    return Verdict::kMiss;
  }
  return known == index::Known::kExpired ? Verdict::kExpired : Verdict::kRetry;
}

Answer Lookups::ask(std::string_view key, std::optional<index::Moment> waiting_since) {
  // An owner has no questions once it knows everything; and after the end nobody answers any.
  if ((complete_.load(std::memory_order_acquire) && context_.ownership.owner()) || stop_) {
    const Verdict answer = verdict(key, waiting_since);
    // It may have found out just now that it is not the owner.
    if (answer == Verdict::kHit || answer == Verdict::kMiss) return {answer};
    return collect_unless_known(key);
  }
  const index::Known known = index_.find(key, waiting_since);
  if (known == index::Known::kPresent) return {Verdict::kHit};
  if (known == index::Known::kAbsent) return {Verdict::kMiss};
  return known == index::Known::kAsked ? Answer{} : collect(key, questions_);
}

Answer Lookups::collect_unless_known(std::string_view key) {
  const index::Known known = index_.find(key);
  return known == index::Known::kPresent || known == index::Known::kAsked ? Answer{}
                                                                          : collect(key, questions_);
}

Answer Lookups::collect(std::string_view key, Collection& questions) {
  if (stop_) return {};
  const std::lock_guard lock(questions_mutex_);
  // Counted by batches: each look at what the threads have written waits for their core.
  if (collected_ == 0 && outstanding_.load(std::memory_order_relaxed) + kProbesPerBatch > kOutstandingMax)
    return {};
  questions[key.size()].append(key);
  return {.asked = true, .due = ++collected_ >= kProbesPerBatch};
}

void Lookups::check_later(std::string_view key) {
  const std::lock_guard lock(questions_mutex_);
  if (stop_ || checks_collected_ >= kProbesPerBatch) return;
  ++checks_collected_;
  checks_[key.size()].append(key);
  checks_made_.fetch_add(1, std::memory_order_relaxed);
}

bool Lookups::has_questions() {
  const std::lock_guard lock(questions_mutex_);
  return collected_ + checks_collected_ > 0;
}

std::vector<Questions> Lookups::take_probes() {
  std::vector<Questions> taken;
  const auto take = [&taken](Asker asker, Collection& collection) {
    for (auto& [key_size, keys] : std::exchange(collection, {}))
      taken.push_back({asker, {std::move(keys), key_size}});
  };
  const std::lock_guard lock(questions_mutex_);
  if (collected_ > 0) outstanding_.fetch_add(collected_, std::memory_order_relaxed);
  take(Asker::kIndex, questions_);
  take(Asker::kIndexUnseen, unseen_);
  take(Asker::kCheck, checks_);
  collected_ = checks_collected_ = 0;
  return taken;
}

std::optional<std::uint32_t> Lookups::take_up(std::string_view key, index::Moment asked_at) {
  outstanding_.fetch_sub(1, std::memory_order_relaxed);
  const std::uint32_t generation = generation_.fetch_add(1, std::memory_order_relaxed);
  if (!index_.ask(key, generation, asked_at)) return std::nullopt;
  probes_.fetch_add(1, std::memory_order_relaxed);
  return generation;
}

void Lookups::answer(std::string_view key, std::uint32_t generation, const Status& status,
                     index::Moment looked_at) {
  index_.answer(key, generation, status.ok(), options_.chunk_size_bytes, looked_at);
}

void Lookups::checked(std::string_view key, const Status& status) {
  if (status.ok() && is_foreign(key)) context_.ownership.give_up();
}

void Lookups::evicted(std::string_view key) {
  if (!index_.drop_taken(key)) return;
  // A store has ended meanwhile: as a duplicate of the file that is gone, or after that with one of its own.
  fs::Entry entry;
  const Status seen = fs::inspect(context_.directory.at(), layouts::chunk_path(key), entry);
  if (!seen.ok() || entry.kind == fs::Kind::kAbsent) index_.forget(key);
}

void Lookups::load_ended(std::string_view key, const Status& status) {
  if (!status.ok()) index_.forget(key);
  if (!status.ok() && !proves_absence(status)) forgot_ = true;
  index_.unpin(key);
}

void Lookups::store_ended(std::string_view key, const Status& status, index::Use use) {
  if (status.ok()) index_.put(key, options_.chunk_size_bytes, use);
  const std::lock_guard lock(storing_mutex_);
  if (const auto found = storing_.find(std::string(key)); found != storing_.end()) storing_.erase(found);
}

void Lookups::store_begins(std::string_view key) {
  const std::lock_guard lock(storing_mutex_);
  storing_.emplace(key);
}

bool Lookups::is_foreign(std::string_view key) {
  {
    const std::lock_guard lock(storing_mutex_);
    if (storing_.contains(std::string(key))) return false;
  }
  // After that: a store puts its key into the index first. A load that has failed since leaves its file, too,
  // and so it does while a question about that is on its way.
  const index::Known known = index_.find(key);
  return known == index::Known::kNothing || known == index::Known::kAbsent || known == index::Known::kExpired;
}

LookupStats Lookups::stats() const {
  LookupStats stats;
  stats.index_keys = index_.present();
  stats.index_bytes = index_.memory_bytes();
  stats.scanned_files = scanned_files_.load(std::memory_order_relaxed);
  stats.scan_complete = scanned_.load() ? 1 : 0;
  stats.owner = context_.ownership.owner() ? 1 : 0;
  stats.pinned_chunks = index_.pinned();
  stats.probes = probes_.load(std::memory_order_relaxed);
  stats.reclaimed_temporaries = reclaimed_.load(std::memory_order_relaxed);
  stats.checks = checks_made_.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace kvfs::jobs
