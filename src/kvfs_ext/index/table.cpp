// One open-addressing table.
#include "index/table.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace kvfs::index {

static_assert(sizeof(Record) == 12);

namespace {

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

std::size_t Table::first_group(std::uint64_t hash) const {
  // The middle bits, since the highest choose the table and the lowest are the tag.
  return static_cast<std::size_t>((hash >> 8 & 0xffffffffU) * groups_ >> 32);
}

std::uint64_t Table::group_tags(std::size_t group) const {
  std::uint64_t word;
  std::memcpy(&word, tags() + group * kGroupSlots, sizeof word);
  if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
  return word;
}

std::size_t Table::find(std::string_view key, std::uint64_t hash) const {
  if (keys_ == 0) return kNowhere;
  std::size_t group = first_group(hash);
  for (std::size_t searched = 0; searched < groups_; ++searched) {
    const std::uint64_t word = group_tags(group);
    for (std::uint64_t marks = matching(word, tag_of(hash)); marks != 0; marks &= marks - 1) {
      const std::size_t place = group * kGroupSlots + first_of(marks);
      if (used(place) && std::memcmp(slot(place), key.data(), key_size_) == 0) return place;
    }
    if (empty_ones(word) != 0) return kNowhere;
    if (++group == groups_) group = 0;
  }
  return kNowhere;
}

std::size_t Table::place_new(std::uint64_t hash) {
  std::size_t group = first_group(hash);
  std::uint64_t free_ones;
  while ((free_ones = group_tags(group) & kHighBits) == 0) {
    if (++group == groups_) group = 0;
  }
  const std::size_t place = group * kGroupSlots + first_of(free_ones);
  if (tags()[place] == kErased) --erased_;
  tags()[place] = tag_of(hash);
  ++keys_;
  return place;
}

std::size_t Table::insert(std::string_view key, std::uint64_t hash, std::uint64_t seed, const Keep& keep) {
  // One slot in eight stays empty, so that a search for what is not there ends soon.
  if (keys_ + erased_ + 1 > slots() / 8 * 7) make_room(seed, keep);
  const std::size_t place = place_new(hash);
  std::memcpy(slot(place), key.data(), key_size_);
  set(place, {});
  return place;
}

void Table::erase(std::size_t place) {
  // Searches end in a group with an empty slot; one that was full may have been passed over.
  const bool passed_over = empty_ones(group_tags(place / kGroupSlots)) == 0;
  tags()[place] = passed_over ? kErased : kEmpty;
  erased_ += passed_over ? 1 : 0;
  --keys_;
}

Record Table::at(std::size_t place) const {
  Record record;
  std::memcpy(&record, slot(place) + key_size_, sizeof record);
  return record;
}

void Table::set(std::size_t place, const Record& record) {
  std::memcpy(slot(place) + key_size_, &record, sizeof record);
}

std::string_view Table::key_at(std::size_t place) const {
  return {reinterpret_cast<const char*>(slot(place)), key_size_};
}

void Table::make_room(std::uint64_t seed, const Keep& keep) {
  std::size_t kept = 0;
  for (std::size_t place = 0; place < slots(); ++place) kept += used(place) && keep(at(place)) ? 1 : 0;
  Table other;
  other.key_size_ = key_size_;
  other.groups_ = groups_;
  // What can go may be so little that the next key would do all this again.
  if (kept + 1 > slots() / 8 * 7 - slots() / 16) other.groups_ = std::max(groups_ + 1, groups_ * 17 / 16);
  other.memory_ = std::make_unique_for_overwrite<std::byte[]>(other.memory_bytes());
  std::memset(other.tags(), kEmpty, other.slots());
  for (std::size_t place = 0; place < slots(); ++place) {
    if (!used(place) || !keep(at(place))) continue;
    const std::size_t target = other.place_new(hash_of(key_at(place), seed));
    std::memcpy(other.slot(target), slot(place), slot_bytes());
  }
  *this = std::move(other);
}

}  // namespace kvfs::index
