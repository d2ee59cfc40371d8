// Whether chunks are there, answered from memory; and what keeps that memory true: the scan, the snapshot,
// the probes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/status.hpp"
#include "index/key_index.hpp"
#include "index/snapshot.hpp"
#include "jobs/job.hpp"
#include "jobs/threads.hpp"
#include "layouts/files.hpp"

namespace kvfs::jobs {

// As docs/lookup.md numbers them.
enum class Verdict : std::uint8_t { kMiss, kHit, kRetry, kExpired };

// What `ask` says of a key.
struct Answer {
  Verdict verdict = Verdict::kRetry;
  bool asked = false;  // a question was collected
  bool due = false;    // and it is time to take them
};

struct LookupOptions {
  double negative_ttl_s = 1.0;
  std::size_t chunk_size_bytes = 0;
};

struct LookupStats {
  std::uint64_t index_keys = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t scanned_files = 0;
  std::uint64_t scan_complete = 0;
  std::uint64_t owner = 0;
  std::uint64_t pinned_chunks = 0;
  std::uint64_t probes = 0;
  std::uint64_t checks = 0;
  std::uint64_t reclaimed_temporaries = 0;
};

// Keys that the disk is asked about together.
struct Questions {
  Asker asker = Asker::kIndex;
  PackedKeys keys;
};

// Thread-safe but for open(), start() and close(), which the engine calls one after the other. docs/lookup.md
// is its contract. No call blocks but those three.
class Lookups {
 public:
  // The namespace, which is open, and its ownership acquired; it outlives this.
  Lookups(layouts::FilesContext& context, const LookupOptions& options);
  ~Lookups() { stop(); }
  Lookups(const Lookups&) = delete;
  Lookups& operator=(const Lookups&) = delete;

  // See whether there is a snapshot.
  void open();
  // Begin to read what is there, on a thread of its own. Throws std::system_error without one.
  void start(Crew& crew);
  // Add what others have stored since the scan, which must have ended: else it does nothing. Blocks as long.
  void learn();
  // End the scan early: ask it to, and wait until it has.
  void ask_to_stop() { stop_ = true; }
  void stop();
  // Write the snapshot, if this is the owner and knows everything. No operation is under way any more.
  void close();

  [[nodiscard]] Verdict lookup(std::string_view key) { return verdict(key, std::nullopt); }
  // The same, and a question is collected where there is no verdict and none on its way. The key goes into
  // the index when a thread takes the question up: that costs more than all else here, and this is the
  // scheduler's thread.
  [[nodiscard]] Answer ask(std::string_view key, std::optional<index::Moment> waiting_since);
  // Collect a question without a look at what is known, which costs more than the question; true when it is
  // time to take them. It is answered after all others.
  [[nodiscard]] bool ask_unseen(std::string_view key) { return collect(key, unseen_).due; }
  [[nodiscard]] std::size_t present_prefix(std::string_view keys, std::size_t key_size_bytes) const {
    return index_.present_prefix(keys, key_size_bytes);
  }
  void prefetch(std::string_view key) const { index_.prefetch(key); }
  [[nodiscard]] std::uint64_t losses() const { return index_.losses(); }
  [[nodiscard]] index::Use take_uses(std::size_t count) { return index_.take_uses(count); }
  void touch(std::string_view key, index::Use use) { index_.touch(key, use); }

  // Collect a question; true when it is time to take them.
  [[nodiscard]] bool probe(std::string_view key) { return collect_unless_known(key).due; }
  [[nodiscard]] bool has_questions();
  [[nodiscard]] std::vector<Questions> take_probes();
  // A thread has come to a question of `asked_at`: the generation of its answer, or none if it needs none any
  // more.
  [[nodiscard]] std::optional<std::uint32_t> take_up(std::string_view key, index::Moment asked_at);
  void answer(std::string_view key, std::uint32_t generation, const Status& status, index::Moment looked_at);
  // The disk has been asked whether a MISS was right.
  void checked(std::string_view key, const Status& status);

  void load_submitted(std::string_view key, index::Use use) { index_.pin(key, use); }
  void store_begins(std::string_view key);
  void load_ended(std::string_view key, const Status& status);
  void store_ended(std::string_view key, const Status& status, index::Use use);

  // What KeyIndex has of these.
  [[nodiscard]] index::Use use_of_oldest(std::size_t count) const { return index_.use_of_oldest(count); }
  void take_oldest(index::Use newest, std::size_t count, std::vector<std::string>& keys) {
    index_.take_oldest(newest, count, keys);
  }
  // The file of a key that was taken so is gone.
  void evicted(std::string_view key);

  [[nodiscard]] LookupStats stats() const;

 private:
  using Collection = std::map<std::size_t, std::string>;  // packed keys by their length

  void read_all();
  // Add all chunks that are there; true if all could be read.
  bool scan(bool counts);
  // Remove a temporary whose writer is gone.
  void reclaim(const std::string& path);
  [[nodiscard]] Verdict verdict(std::string_view key, std::optional<index::Moment> waiting_since);
  [[nodiscard]] Answer collect_unless_known(std::string_view key);
  [[nodiscard]] Answer collect(std::string_view key, Collection& questions);
  // The chunk is on disk although this engine knows nothing of it: was it stored by another?
  [[nodiscard]] bool is_foreign(std::string_view key);
  // Have the disk asked whether a MISS was right.
  void check_later(std::string_view key);

  layouts::FilesContext& context_;
  const LookupOptions options_;
  index::KeyIndex index_;
  index::SnapshotReader snapshot_;
  bool has_snapshot_ = false;

  // Every chunk of the namespace is in the index: what is not there is not on disk, for an owner.
  std::atomic<bool> complete_{false};
  std::atomic<bool> scanned_{false};
  // A load has failed and may have left a good chunk, of which nothing is known now.
  std::atomic<bool> forgot_{false};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> scanned_files_{0};
  std::atomic<std::uint64_t> reclaimed_{0};
  std::thread scanner_;

  // What the threads write at each question, apart from what whoever asks reads for each key.
  alignas(index::kCacheLineBytes) std::atomic<std::uint64_t> probes_{0};
  std::atomic<std::uint32_t> generation_{0};
  // Questions that were handed over and no thread has taken up.
  std::atomic<std::size_t> outstanding_{0};

  alignas(index::kCacheLineBytes) std::mutex questions_mutex_;  // guards what follows
  Collection questions_;
  Collection unseen_;
  Collection checks_;
  std::size_t collected_ = 0;
  std::size_t checks_collected_ = 0;
  std::atomic<std::uint64_t> checks_made_{0};

  std::mutex storing_mutex_;
  std::unordered_multiset<std::string> storing_;  // keys whose store is under way
};

}  // namespace kvfs::jobs
