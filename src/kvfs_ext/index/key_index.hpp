// What is known of the keys of one namespace, in memory: which chunks are on disk, and which were found
// missing.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "index/brief_lock.hpp"
#include "index/table.hpp"

namespace kvfs::index {

inline constexpr std::size_t kKeySizeMax = 255;
// What one thread writes and another reads for each key lies so far apart. Not
// std::hardware_destructive_interference_size: that is not the same for all compilers.
inline constexpr std::size_t kCacheLineBytes = 64;

// Hundredths of a second since some start; may wrap around, after 497 days.
using Moment = std::uint32_t;
[[nodiscard]] Moment now();
// The moment at so many seconds of CLOCK_MONOTONIC, which is Python's time.monotonic().
[[nodiscard]] Moment moment_at(double monotonic_s);

// The order of uses: a later one is more. Of files that were found, seconds of a calendar, which is less than
// any use since a start. There is room for 270 billion uses.
using Use = std::uint64_t;
inline constexpr Use kUseMax = (Use{1} << 38) - 1;  // a start leaves as many for what comes

enum class Known : std::uint8_t { kNothing, kPresent, kAbsent, kExpired, kAsked, kForgotten };

// docs/lookup.md has the states and what changes them. Thread-safe: keys are spread over shards, each behind
// a lock that is held for one access (some 50 ns; 0.1 ms now and then at ten million keys, when a shard
// grows). Keys have 5 to kKeySizeMax bytes; each length that occurs has shards of its own, 0.4 MB of them.
class KeyIndex {
 public:
  explicit KeyIndex(double negative_ttl_s);
  ~KeyIndex();
  KeyIndex(const KeyIndex&) = delete;
  KeyIndex& operator=(const KeyIndex&) = delete;

  // An absence that was found at `waiting_since` or later counts, however long ago that is: whoever waits for
  // an answer shall get it.
  [[nodiscard]] Known find(std::string_view key, std::optional<Moment> waiting_since = std::nullopt) const;
  // Have the processor fetch what find() of this key will wait for first.
  void prefetch(std::string_view key) const;
  // How many of the packed keys are present, counted from the first until one is not.
  [[nodiscard]] std::size_t present_prefix(std::string_view keys, std::size_t key_size_bytes) const;

  // The uses of `count` keys that are used together, the last one's: the one before it has one more, and so
  // on, since the beginning of a prefix is worth more than its end. Never blocks.
  [[nodiscard]] Use take_uses(std::size_t count) {
    return next_use_.fetch_add(count, std::memory_order_relaxed);
  }

  // The chunk is on disk for certain.
  void put(std::string_view key, std::uint64_t size_bytes, Use use);
  // A probe begins, for a question of `asked_at`: the key is asked, and the answer counts only while it still
  // is with this generation. False where there is nothing to ask: the key is present, asked already, or was
  // found to be absent since.
  [[nodiscard]] bool ask(std::string_view key, std::uint32_t generation, Moment asked_at);
  void answer(std::string_view key, std::uint32_t generation, bool present, std::uint64_t size_bytes,
              Moment looked_at);
  // Its load failed.
  void forget(std::string_view key);
  // The scan saw the file: adds a key of which nothing is known, and confirms a hint.
  void add(std::string_view key, std::uint64_t size_bytes, Use use);
  // A snapshot has the key: adds it if nothing is known of it.
  void hint(std::string_view key, std::uint32_t blocks, Use use);
  // The end of the scan: hints that nobody confirmed are wrong.
  void drop_hints();
  // While the scan runs, absent and forgotten keys are kept however old they are.
  void set_scanning(bool scanning) { scanning_.store(scanning, std::memory_order_relaxed); }

  void touch(std::string_view key, Use use);
  // A load is under way, or has ended: of a present key, of others nothing is noted.
  void pin(std::string_view key, Use use);
  void unpin(std::string_view key);

  // The use that about `count` present keys without pins are not newer than, by a sample of them. Goes
  // through the whole index: 0.3 s at ten million keys.
  [[nodiscard]] Use use_of_oldest(std::size_t count) const;
  // Take at most `count` present keys without pins, not newer than `newest`: they are forgotten, and their
  // files are the caller's to remove. Goes on where the last call ended; none are left when it appends none.
  void take_oldest(Use newest, std::size_t count, std::vector<std::string>& keys);
  // The file of a key that was taken is gone. True where a store has come in between and says that the chunk
  // is there, which has to be looked at again.
  bool drop_taken(std::string_view key);

  // How often a present key has ceased to be one. While that stays as it is, so does every key that was found
  // to be present.
  [[nodiscard]] std::uint64_t losses() const { return losses_.load(std::memory_order_acquire); }

  [[nodiscard]] std::size_t present() const { return present_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t pinned() const { return pinned_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::size_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

  // Lengths of which keys may be there, and the present keys of one; changes meanwhile may or may not be
  // seen.
  [[nodiscard]] bool has_size(std::size_t key_size_bytes) const;
  void each_present(std::size_t key_size_bytes,
                    const std::function<void(std::string_view, const Record&)>& use) const;

 private:
  static constexpr std::size_t kShardBits = 10;
  // One line: what is not at hand yet is waited for line by line.
  struct alignas(kCacheLineBytes) Shard {
    mutable BriefLock lock;
    Table table;
  };
  static_assert(sizeof(Shard) == kCacheLineBytes);
  using Shards = std::array<Shard, std::size_t{1} << kShardBits>;
  static constexpr std::size_t shard_of(std::uint64_t hash) { return hash >> (64 - kShardBits); }
  // Locked, with the place of the key.
  struct Found {
    Shard* shard = nullptr;
    std::unique_lock<BriefLock> lock;
    std::size_t place = Table::kNowhere;
    std::uint64_t hash = 0;
    [[nodiscard]] bool there() const { return place != Table::kNowhere; }
  };

  [[nodiscard]] Found locate(std::string_view key) const;
  [[nodiscard]] static Found locate(Shards& shards, std::string_view key, std::uint64_t hash);
  // The same, with shards made if these are the first keys of their length.
  [[nodiscard]] Found locate_to_change(std::string_view key);
  void change(Found& found, std::string_view key, const Record& record);
  void erase(Found& found);
  void lost();
  [[nodiscard]] bool expired(const Record& record, Moment moment) const;
  [[nodiscard]] Known known(const Found& found, std::optional<Moment> waiting_since) const;

  const std::uint64_t seed_;
  const Moment negative_ttl_;
  std::atomic<bool> scanning_{false};
  std::mutex making_;
  std::array<std::atomic<Shards*>, kKeySizeMax + 1> by_size_{};

  // What changes with the keys, apart from what each access reads.
  alignas(kCacheLineBytes) std::atomic<std::size_t> present_{0};
  std::atomic<std::size_t> pinned_{0};
  std::atomic<std::size_t> memory_bytes_{0};
  // Above all seconds of a calendar until the year 2106.
  std::atomic<Use> next_use_{Use{1} << 32};
  std::atomic<std::size_t> next_shard_{0};
  // Read for each key, and seldom written.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> losses_{0};
};

}  // namespace kvfs::index
