// What is known of keys.
#include "index/key_index.hpp"

#include <time.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

namespace kvfs::index {

namespace {

constexpr std::uint32_t kBlockBytes = 512;
constexpr double kTicksPerSecond = 100;

std::uint32_t blocks_of(std::uint64_t size_bytes) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(kMost, (size_bytes + kBlockBytes - 1) / kBlockBytes));
}

std::uint64_t random_seed() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

Moment ticks(double seconds) {
  // Half of the range at most: from there on a moment would be in the past again.
  constexpr double kMost = 1U << 31;
  return static_cast<Moment>(std::clamp(seconds * kTicksPerSecond, 0.0, kMost));
}

}  // namespace

Moment now() {
  struct timespec time;
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<Moment>(static_cast<std::uint64_t>(time.tv_sec) * 100 +
                             static_cast<std::uint64_t>(time.tv_nsec) / 10'000'000);
}

Moment moment_at(double monotonic_s) {
  return static_cast<Moment>(static_cast<std::uint64_t>(monotonic_s * kTicksPerSecond));
}

KeyIndex::KeyIndex(double negative_ttl_s) : seed_(random_seed()), negative_ttl_(ticks(negative_ttl_s)) {}

KeyIndex::~KeyIndex() {
  for (auto& shards : by_size_) delete shards.load();
}

bool KeyIndex::expired(const Record& record, Moment moment) const {
  // Rounded against it: within a tick it may have been absent for a whole one already.
  return moment - record.stamp + 1 > negative_ttl_;
}

KeyIndex::Found KeyIndex::locate(std::string_view key) const {
  Shards* const shards = by_size_[key.size()].load(std::memory_order_acquire);
  return shards == nullptr ? Found{} : locate(*shards, key, hash_of(key, seed_));
}

KeyIndex::Found KeyIndex::locate(Shards& shards, std::string_view key, std::uint64_t hash) {
  Shard& shard = shards[shard_of(hash)];
  std::unique_lock lock(shard.lock);
  const std::size_t place = shard.table.find(key, hash);
  return {&shard, std::move(lock), place, hash};
}

KeyIndex::Found KeyIndex::locate_to_change(std::string_view key) {
  if (by_size_[key.size()].load(std::memory_order_acquire) == nullptr) {
    const std::lock_guard lock(making_);
    if (by_size_[key.size()].load(std::memory_order_relaxed) == nullptr) {
      auto shards = std::make_unique<Shards>();
      for (Shard& shard : *shards) shard.table.set_key_size(key.size());
      memory_bytes_.fetch_add(sizeof(Shards), std::memory_order_relaxed);
      by_size_[key.size()].store(shards.release(), std::memory_order_release);
    }
  }
  return locate(key);
}

void KeyIndex::change(Found& found, std::string_view key, const Record& record) {
  Table& table = found.shard->table;
  bool was_present = false;
  if (found.there()) {
    was_present = table.at(found.place).state == State::kPresent;
  } else {
    const std::size_t before = table.memory_bytes();
    std::optional<Moment> moment;
    const auto keep = [&](const Record& other) {
      if (scanning_.load(std::memory_order_relaxed) || other.pins > 0) return true;
      if (other.state != State::kAbsent) return other.state != State::kForgotten;
      // Asked once a growth, not once a key.
      if (!moment) moment = now();
      return !expired(other, *moment);
    };
    found.place = table.insert(key, found.hash, seed_, std::ref(keep));
    memory_bytes_.fetch_add(table.memory_bytes() - before, std::memory_order_relaxed);
  }
  table.set(found.place, record);
  const bool is_present = record.state == State::kPresent;
  if (is_present && !was_present) present_.fetch_add(1, std::memory_order_relaxed);
  if (!is_present && was_present) lost();
}

void KeyIndex::erase(Found& found) {
  const Record record = found.shard->table.at(found.place);
  if (record.state == State::kPresent) lost();
  if (record.pins > 0) pinned_.fetch_sub(1, std::memory_order_relaxed);
  found.shard->table.erase(found.place, seed_);
}

void KeyIndex::lost() {
  present_.fetch_sub(1, std::memory_order_relaxed);
  losses_.fetch_add(1, std::memory_order_release);
}

Known KeyIndex::known(const Found& found, std::optional<Moment> waiting_since) const {
  if (!found.there()) return Known::kNothing;
  const Record record = found.shard->table.at(found.place);
  switch (record.state) {
    case State::kPresent:
      return Known::kPresent;
    case State::kAbsent: {
      const bool awaited = waiting_since && static_cast<std::int32_t>(record.stamp - *waiting_since) >= 0;
      return awaited || !expired(record, now()) ? Known::kAbsent : Known::kExpired;
    }
    case State::kAsked:
      return Known::kAsked;
    case State::kForgotten:
      return Known::kForgotten;
  }
  return Known::kNothing;
}

Known KeyIndex::find(std::string_view key, std::optional<Moment> waiting_since) const {
  return known(locate(key), waiting_since);
}

void KeyIndex::prefetch(std::string_view key) const {
  const Shards* const shards = by_size_[key.size()].load(std::memory_order_acquire);
  if (shards != nullptr) __builtin_prefetch(&(*shards)[shard_of(hash_of(key, seed_))], 1);
}

std::size_t KeyIndex::present_prefix(std::string_view keys, std::size_t key_size_bytes) const {
  Shards* const shards = by_size_[key_size_bytes].load(std::memory_order_acquire);
  if (shards == nullptr) return 0;
  // A look waits for memory three times. So those of several keys wait together, of a few at first: the first
  // may well be missing.
  constexpr std::size_t kTogetherAtFirst = 4;
  constexpr std::size_t kTogether = 16;
  std::array<std::uint64_t, kTogether> hashes;
  const std::size_t all = keys.size() / key_size_bytes;
  const auto key_at = [&](std::size_t i) { return keys.substr(i * key_size_bytes, key_size_bytes); };
  std::size_t count = 0;
  for (std::size_t first = 0; first < all; first += count) {
    count = std::min(first == 0 ? kTogetherAtFirst : kTogether, all - first);
    for (std::size_t i = 0; i < count; ++i) {
      hashes[i] = hash_of(key_at(first + i), seed_);
      __builtin_prefetch(&(*shards)[shard_of(hashes[i])], 1);
    }
    const auto for_each = [&](void (Table::*fetch)(std::uint64_t) const) {
      for (std::size_t i = 0; i < count; ++i) {
        const Shard& shard = (*shards)[shard_of(hashes[i])];
        const std::lock_guard lock(shard.lock);
        (shard.table.*fetch)(hashes[i]);
      }
    };
    for_each(&Table::prefetch_group);
    for_each(&Table::prefetch_entry);
    for (std::size_t i = 0; i < count; ++i) {
      if (known(locate(*shards, key_at(first + i), hashes[i]), std::nullopt) != Known::kPresent)
        return first + i;
    }
  }
  return all;
}

void KeyIndex::put(std::string_view key, std::uint64_t size_bytes, Use use) {
  Found found = locate_to_change(key);
  Record record;
  if (found.there()) record.pins = found.shard->table.at(found.place).pins;
  record.blocks = blocks_of(size_bytes);
  record.set_last_use(use);
  change(found, key, record);
}

bool KeyIndex::ask(std::string_view key, std::uint32_t generation, Moment asked_at) {
  Found found = locate_to_change(key);
  Record record;
  if (found.there()) {
    record = found.shard->table.at(found.place);
    if (record.state == State::kPresent || record.state == State::kAsked) return false;
    // Strictly: within one tick, the look may have come before the question.
    if (record.state == State::kAbsent && static_cast<std::int32_t>(record.stamp - asked_at) > 0)
      return false;
  }
  record.state = State::kAsked;
  record.stamp = generation;
  change(found, key, record);
  return true;
}

void KeyIndex::answer(std::string_view key, std::uint32_t generation, bool present, std::uint64_t size_bytes,
                      Moment looked_at) {
  Found found = locate(key);
  if (!found.there()) return;
  Record record = found.shard->table.at(found.place);
  if (record.state != State::kAsked || record.stamp != generation) return;
  record.state = present ? State::kPresent : State::kAbsent;
  record.blocks = present ? blocks_of(size_bytes) : 0;
  record.stamp = looked_at;
  if (present) record.set_last_use(take_uses(1));
  change(found, key, record);
}

void KeyIndex::forget(std::string_view key) {
  Found found = locate_to_change(key);
  Record record;
  if (found.there()) record.pins = found.shard->table.at(found.place).pins;
  record.state = State::kForgotten;
  change(found, key, record);
}

void KeyIndex::add(std::string_view key, std::uint64_t size_bytes, Use use) {
  Found found = locate_to_change(key);
  Record record;
  record.set_last_use(use);
  if (found.there()) {
    record = found.shard->table.at(found.place);
    if (record.state != State::kPresent || !record.hint) return;
  }
  record.hint = false;
  record.blocks = blocks_of(size_bytes);
  change(found, key, record);
}

void KeyIndex::hint(std::string_view key, std::uint32_t blocks, Use use) {
  Found found = locate_to_change(key);
  if (found.there()) return;
  Record record;
  record.blocks = blocks;
  record.set_last_use(use);
  record.hint = true;
  // What is used from now on is newer.
  Use next = next_use_.load(std::memory_order_relaxed);
  while (next <= use && !next_use_.compare_exchange_weak(next, use + 1, std::memory_order_relaxed)) {
  }
  change(found, key, record);
}

void KeyIndex::drop_hints() {
  for (auto& by_size : by_size_) {
    Shards* const shards = by_size.load(std::memory_order_acquire);
    if (shards == nullptr) continue;
    for (Shard& shard : *shards) {
      Found found{&shard, std::unique_lock(shard.lock)};
      for (found.place = shard.table.size(); found.place-- > 0;) {
        const Record record = shard.table.at(found.place);
        if (record.hint && record.state == State::kPresent) erase(found);
      }
    }
  }
}

void KeyIndex::touch(std::string_view key, Use use) {
  Found found = locate(key);
  if (!found.there()) return;
  Record record = found.shard->table.at(found.place);
  if (record.state != State::kPresent) return;
  record.set_last_use(use);
  found.shard->table.set(found.place, record);
}

void KeyIndex::pin(std::string_view key, Use use) {
  Found found = locate(key);
  if (!found.there()) return;
  Record record = found.shard->table.at(found.place);
  if (record.state != State::kPresent || record.pins == std::numeric_limits<std::uint16_t>::max()) return;
  if (record.pins++ == 0) pinned_.fetch_add(1, std::memory_order_relaxed);
  record.set_last_use(use);
  found.shard->table.set(found.place, record);
}

void KeyIndex::unpin(std::string_view key) {
  Found found = locate(key);
  if (!found.there()) return;
  Record record = found.shard->table.at(found.place);
  if (record.pins == 0) return;
  if (--record.pins == 0) pinned_.fetch_sub(1, std::memory_order_relaxed);
  found.shard->table.set(found.place, record);
}

Use KeyIndex::use_of_oldest(std::size_t count) const {
  // So many are enough to tell a hundredth of all keys from the rest.
  constexpr std::size_t kSamples = std::size_t{1} << 16;
  const std::size_t stride = present() / kSamples + 1;
  std::vector<Use> uses;
  uses.reserve(present() / stride + 1);
  std::size_t next = 0;
  for (const auto& by_size : by_size_) {
    const Shards* const shards = by_size.load(std::memory_order_acquire);
    if (shards == nullptr) continue;
    for (const Shard& shard : *shards) {
      const std::lock_guard lock(shard.lock);
      for (std::size_t place = 0; place < shard.table.size(); ++place) {
        const Record record = shard.table.at(place);
        if (record.state != State::kPresent || record.pins > 0 || next++ % stride != 0) continue;
        uses.push_back(record.last_use());
      }
    }
  }
  if (uses.empty()) return 0;
  const std::size_t rank = std::min(uses.size() - 1, (count - 1) / stride);
  std::nth_element(uses.begin(), uses.begin() + static_cast<std::ptrdiff_t>(rank), uses.end());
  return uses[rank];
}

void KeyIndex::take_oldest(Use newest, std::size_t count, std::vector<std::string>& keys) {
  const std::size_t first = next_shard_.load(std::memory_order_relaxed);
  std::size_t taken = 0;
  for (auto& by_size : by_size_) {
    Shards* const shards = by_size.load(std::memory_order_acquire);
    if (shards == nullptr) continue;
    for (std::size_t i = 0; i < shards->size() && taken < count; ++i) {
      const std::size_t number = (first + i) % shards->size();
      Found found{&(*shards)[number], std::unique_lock((*shards)[number].lock)};
      Table& table = found.shard->table;
      for (found.place = 0; found.place < table.size() && taken < count; ++found.place) {
        Record record = table.at(found.place);
        if (record.state != State::kPresent || record.pins > 0 || record.last_use() > newest) continue;
        keys.emplace_back(table.key_at(found.place));
        record.state = State::kForgotten;
        change(found, keys.back(), record);
        ++taken;
      }
      next_shard_.store(number, std::memory_order_relaxed);
    }
  }
}

bool KeyIndex::drop_taken(std::string_view key) {
  Found found = locate(key);
  if (!found.there()) return false;
  const Record record = found.shard->table.at(found.place);
  if (record.state == State::kForgotten && record.pins == 0) erase(found);
  return record.state == State::kPresent;
}

bool KeyIndex::has_size(std::size_t key_size_bytes) const {
  return by_size_[key_size_bytes].load(std::memory_order_acquire) != nullptr;
}

void KeyIndex::each_present(std::size_t key_size_bytes,
                            const std::function<void(std::string_view, const Record&)>& use) const {
  const Shards* const shards = by_size_[key_size_bytes].load(std::memory_order_acquire);
  if (shards == nullptr) return;
  for (const Shard& shard : *shards) {
    const std::lock_guard lock(shard.lock);
    for (std::size_t place = 0; place < shard.table.size(); ++place) {
      const Record record = shard.table.at(place);
      if (record.state == State::kPresent) use(shard.table.key_at(place), record);
    }
  }
}

}  // namespace kvfs::index
