// One open-addressing table of equally long keys, each with a record. The index has many of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>

namespace kvfs::index {

enum class State : std::uint8_t {
  kPresent,    // the chunk is on disk
  kAbsent,     // a probe found none; `stamp` says when
  kAsked,      // a probe is on its way; `stamp` is its generation
  kForgotten,  // a load failed: nothing is known, but something was
};

// What is kept of a key beside the key.
struct Record {
  std::uint32_t blocks = 0;  // of 512 bytes that the file takes
  std::uint32_t stamp = 0;   // present: the lower bits of the last use; else see State
  std::uint16_t pins = 0;    // loads that are under way
  State state = State::kPresent;
  bool hint : 1 = false;               // a snapshot said so and nobody has seen the file yet
  std::uint8_t last_use_high : 6 = 0;  // of a present key

  // When it was used last, as KeyIndex counts uses; 38 bits.
  [[nodiscard]] std::uint64_t last_use() const { return std::uint64_t{last_use_high} << 32 | stamp; }
  void set_last_use(std::uint64_t use) {
    stamp = static_cast<std::uint32_t>(use);
    last_use_high = use >> 32 & 0x3fU;
  }
};

// Keys begin with a cryptographic hash, so that eight bytes of it and the group tell them apart well enough;
// the secret seed keeps those who choose prompts from choosing places.
[[nodiscard]] std::uint64_t hash_of(std::string_view key, std::uint64_t seed);

// Not thread-safe. Keys and their records lie one after the other; beside them is a table of their numbers,
// in groups of eight with a tag of one byte each, so that a search compares eight at a time and meets two or
// three cache lines. Adding is cheap: entries grow by a sixteenth without being looked at, and of the table,
// which doubles, there is little. A key of 36 bytes costs 54 to 63 bytes.
class Table {
 public:
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  using Keep = std::function<bool(const Record&)>;

  [[nodiscard]] std::size_t find(std::string_view key, std::uint64_t hash) const;
  // Have the processor fetch what find() reads first, and what it reads then, for which that has to be there.
  void prefetch_group(std::uint64_t hash) const;
  void prefetch_entry(std::uint64_t hash) const;
  // Add a key that is not there. Where there is no room, records that `keep` says no to make some.
  std::size_t insert(std::string_view key, std::uint64_t hash, std::uint64_t seed, const Keep& keep);
  // Takes the last place's key to this place, so that whoever visits all places goes backwards.
  void erase(std::size_t place, std::uint64_t seed);

  // Places are the numbers below this.
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] Record at(std::size_t place) const;
  void set(std::size_t place, const Record& record);
  [[nodiscard]] std::string_view key_at(std::size_t place) const;
  [[nodiscard]] std::size_t memory_bytes() const {
    return capacity_ * entry_bytes() + group_count_ * sizeof(Group);
  }

  // Once, at most 255.
  void set_key_size(std::size_t key_size_bytes) { key_size_ = static_cast<std::uint32_t>(key_size_bytes); }

 private:
  static constexpr std::size_t kGroupSlots = 8;
  struct Group {
    std::array<std::uint8_t, kGroupSlots> tags;
    std::array<std::uint32_t, kGroupSlots> places;
  };
  // Where a slot is in the table.
  struct Slot {
    std::size_t group = 0;
    std::size_t index = 0;
  };

  [[nodiscard]] std::size_t entry_bytes() const { return key_size_ + sizeof(Record); }
  [[nodiscard]] std::byte* entry(std::size_t place) const { return entries_.get() + place * entry_bytes(); }
  [[nodiscard]] std::size_t next(std::size_t group) const { return (group + 1) & (group_count_ - 1); }
  [[nodiscard]] std::size_t first_group(std::uint64_t hash) const { return (hash >> 8) & (group_count_ - 1); }
  // The slot that names a place which is there.
  [[nodiscard]] Slot slot_of(std::size_t place, std::uint64_t seed) const;
  void enter(std::size_t place, std::uint64_t hash);
  void make_room_for_entry(std::uint64_t seed, const Keep& keep);
  void make_room_for_slot(std::uint64_t seed);

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  // As small as they can be: they are the first thing that each access waits for.
  std::uint32_t key_size_ = 0;
  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 0;
  std::uint32_t group_count_ = 0;   // a power of two, or none
  std::uint32_t erased_slots_ = 0;  // that searches still have to pass
  std::unique_ptr<std::byte[], Free> entries_;
  std::unique_ptr<Group[]> groups_;
};

}  // namespace kvfs::index
