// One open-addressing table.
#include "index/table.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

namespace kvfs::index {

static_assert(sizeof(Record) == 12);

namespace {

// Tags of slots that name no place; those of others are below.
constexpr std::uint8_t kEmpty = 0x80;
constexpr std::uint8_t kErased = 0xfe;
constexpr std::uint32_t kFewEntries = 2;
constexpr std::uint64_t kLowBits = 0x0101010101010101U;
constexpr std::uint64_t kHighBits = 0x8080808080808080U;

// Marks the bytes of `word` that may equal `tag`; never misses one, and now and then marks the byte after
// one.
std::uint64_t matching(std::uint64_t word, std::uint8_t tag) {
  const std::uint64_t different = word ^ (kLowBits * tag);
  return (different - kLowBits) & ~different & kHighBits;
}

std::uint64_t empty_ones(std::uint64_t word) { return word & ~(word << 6) & kHighBits; }

// The number of the first marked byte.
std::size_t first_of(std::uint64_t marks) { return static_cast<std::size_t>(std::countr_zero(marks)) / 8; }

std::uint8_t tag_of(std::uint64_t hash) { return static_cast<std::uint8_t>(hash & 0x7f); }

std::uint64_t word_of(const std::array<std::uint8_t, 8>& tags) {
  std::uint64_t word;
  std::memcpy(&word, tags.data(), sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93U;
  value ^= value >> 32;
  value *= 0xd6e8feb86659fd93U;
  return value ^ value >> 32;
}

}  // namespace

std::uint64_t hash_of(std::string_view key, std::uint64_t seed) {
  std::uint64_t head = 0;
  std::uint32_t group = 0;
  std::memcpy(&head, key.data(), std::min(sizeof head, key.size()));
  std::memcpy(&group, key.data() + key.size() - sizeof group, sizeof group);
  return mixed(mixed(head ^ seed) + group + key.size());
}

std::size_t Table::find(std::string_view key, std::uint64_t hash) const {
  if (size_ == 0) return kNowhere;
  // Of few entries it is likely the first one, and this need not wait for the group that says so.
  if (size_ <= kFewEntries) __builtin_prefetch(entries_.get());
  for (std::size_t group = first_group(hash);; group = next(group)) {
    const std::uint64_t tags = word_of(groups_[group].tags);
    for (std::uint64_t marks = matching(tags, tag_of(hash)); marks != 0; marks &= marks - 1) {
      const std::size_t index = first_of(marks);
      const std::size_t place = groups_[group].places[index];
      if (groups_[group].tags[index] == tag_of(hash) && std::memcmp(entry(place), key.data(), key_size_) == 0)
        return place;
    }
    // One slot in eight is empty, so this ends.
    if (empty_ones(tags) != 0) return kNowhere;
  }
}

void Table::prefetch_group(std::uint64_t hash) const {
  if (size_ != 0) __builtin_prefetch(&groups_[first_group(hash)]);
}

void Table::prefetch_entry(std::uint64_t hash) const {
  if (size_ == 0) return;
  const Group& group = groups_[first_group(hash)];
  const std::uint64_t marks = matching(word_of(group.tags), tag_of(hash));
  if (marks == 0) return;
  const std::byte* const first = entry(group.places[first_of(marks)]);
  __builtin_prefetch(first);
  __builtin_prefetch(first + entry_bytes() - 1);
}

Table::Slot Table::slot_of(std::size_t place, std::uint64_t seed) const {
  const std::uint64_t hash = hash_of(key_at(place), seed);
  for (std::size_t group = first_group(hash);; group = next(group)) {
    for (std::size_t index = 0; index < kGroupSlots; ++index) {
      if (groups_[group].tags[index] == tag_of(hash) && groups_[group].places[index] == place)
        return {group, index};
    }
  }
}

void Table::enter(std::size_t place, std::uint64_t hash) {
  std::size_t group = first_group(hash);
  std::uint64_t free_ones;
  while ((free_ones = word_of(groups_[group].tags) & kHighBits) == 0) group = next(group);
  const std::size_t index = first_of(free_ones);
  if (groups_[group].tags[index] == kErased) --erased_slots_;
  groups_[group].tags[index] = tag_of(hash);
  groups_[group].places[index] = static_cast<std::uint32_t>(place);
}

std::size_t Table::insert(std::string_view key, std::uint64_t hash, std::uint64_t seed, const Keep& keep) {
  if (size_ == capacity_) make_room_for_entry(seed, keep);
  if (size_ + erased_slots_ + 1 > std::size_t{group_count_} * kGroupSlots / 8 * 7) make_room_for_slot(seed);
  const std::size_t place = size_++;
  std::memcpy(entry(place), key.data(), key_size_);
  set(place, {});
  enter(place, hash);
  return place;
}

void Table::erase(std::size_t place, std::uint64_t seed) {
  const auto [group, index] = slot_of(place, seed);
  // Searches end in a group with an empty slot; one that was full may have been passed over.
  const bool passed_over = empty_ones(word_of(groups_[group].tags)) == 0;
  groups_[group].tags[index] = passed_over ? kErased : kEmpty;
  erased_slots_ += passed_over ? 1U : 0U;
  const std::size_t last = size_ - 1;
  if (place != last) {
    const auto [last_group, last_index] = slot_of(last, seed);
    groups_[last_group].places[last_index] = static_cast<std::uint32_t>(place);
    std::memcpy(entry(place), entry(last), entry_bytes());
  }
  --size_;
}

Record Table::at(std::size_t place) const {
  Record record;
  std::memcpy(&record, entry(place) + key_size_, sizeof record);
  return record;
}

void Table::set(std::size_t place, const Record& record) {
  std::memcpy(entry(place) + key_size_, &record, sizeof record);
}

std::string_view Table::key_at(std::size_t place) const {
  return {reinterpret_cast<const char*>(entry(place)), key_size_};
}

void Table::make_room_for_entry(std::uint64_t seed, const Keep& keep) {
  constexpr std::size_t kFirst = 8;
  const std::size_t step = std::max<std::size_t>(kFirst, capacity_ / 16);
  std::size_t dropped = 0;
  for (std::size_t place = 0; place < size_; ++place) dropped += keep(at(place)) ? 0 : 1;
  // So few that the next keys would do all this again are left for later.
  if (dropped >= step) {
    for (std::size_t place = size_; place-- > 0;) {
      if (!keep(at(place))) erase(place, seed);
    }
    return;
  }
  std::byte* const grown =
      static_cast<std::byte*>(std::realloc(entries_.get(), (capacity_ + step) * entry_bytes()));
  if (grown == nullptr) throw std::bad_alloc();
  (void)entries_.release();
  entries_.reset(grown);
  capacity_ += static_cast<std::uint32_t>(step);
}

void Table::make_room_for_slot(std::uint64_t seed) {
  // If erased slots are what fills it, the same size does once they are gone.
  const bool doubles = size_ + 1 > std::size_t{group_count_} * kGroupSlots / 4 * 3;
  const std::uint32_t count = doubles ? std::max(1U, group_count_ * 2) : group_count_;
  if (count != group_count_) groups_ = std::make_unique<Group[]>(count);
  group_count_ = count;
  for (std::size_t group = 0; group < count; ++group) groups_[group].tags.fill(kEmpty);
  erased_slots_ = 0;
  for (std::size_t place = 0; place < size_; ++place) enter(place, hash_of(key_at(place), seed));
}

}  // namespace kvfs::index
