// One open-addressing table of equally long keys, each with a record. The index has many of them.
#pragma once

#include <cstddef>
#include <cstdint>
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
  std::uint32_t stamp = 0;   // present: the moment of the last use; else see State
  std::uint16_t pins = 0;    // loads that are under way
  State state = State::kPresent;
  bool hint = false;  // a snapshot said so and nobody has seen the file yet
};

// Keys begin with a cryptographic hash, so that eight bytes of it and the group tell them apart well enough;
// the secret seed keeps those who choose prompts from choosing places.
[[nodiscard]] std::uint64_t hash_of(std::string_view key, std::uint64_t seed);

// Not thread-safe. A slot is the key, its record and a tag of one byte: 49 bytes for a key of 36. Tags are
// compared eight at a time, so that the table may be nearly full (0.82 to 0.875 beyond a hundred keys)
// and is still searched in one or two steps. Growth is by a sixteenth, because its memory is the index's
// whole cost.
class Table {
 public:
  static constexpr std::size_t kNowhere = ~std::size_t{0};
  using Keep = std::function<bool(const Record&)>;

  [[nodiscard]] std::size_t find(std::string_view key, std::uint64_t hash) const;
  // Add a key that is not there. Where the table is full, records that `keep` says no to make room.
  std::size_t insert(std::string_view key, std::uint64_t hash, std::uint64_t seed, const Keep& keep);
  void erase(std::size_t place);

  [[nodiscard]] Record at(std::size_t place) const;
  void set(std::size_t place, const Record& record);
  [[nodiscard]] std::string_view key_at(std::size_t place) const;

  // Places are numbers below this; not every one is used.
  [[nodiscard]] std::size_t slots() const { return groups_ * kGroupSlots; }
  [[nodiscard]] bool used(std::size_t place) const { return (tags()[place] & kNoTag) == 0; }
  [[nodiscard]] std::size_t memory_bytes() const { return slots() * (slot_bytes() + 1); }

  void set_key_size(std::size_t key_size_bytes) { key_size_ = key_size_bytes; }

 private:
  static constexpr std::size_t kGroupSlots = 8;
  // Tags of slots without a key; those of keys are below.
  static constexpr std::uint8_t kNoTag = 0x80;
  static constexpr std::uint8_t kEmpty = 0x80;
  static constexpr std::uint8_t kErased = 0xfe;

  [[nodiscard]] std::size_t slot_bytes() const { return key_size_ + sizeof(Record); }
  [[nodiscard]] const std::uint8_t* tags() const {
    return reinterpret_cast<const std::uint8_t*>(memory_.get()) + slots() * slot_bytes();
  }
  std::uint8_t* tags() { return reinterpret_cast<std::uint8_t*>(memory_.get()) + slots() * slot_bytes(); }
  [[nodiscard]] std::byte* slot(std::size_t place) const { return memory_.get() + place * slot_bytes(); }
  [[nodiscard]] std::size_t first_group(std::uint64_t hash) const;
  [[nodiscard]] std::uint64_t group_tags(std::size_t group) const;
  std::size_t place_new(std::uint64_t hash);
  void make_room(std::uint64_t seed, const Keep& keep);

  std::size_t key_size_ = 0;
  std::unique_ptr<std::byte[]> memory_;  // the slots, then their tags
  std::size_t groups_ = 0;
  std::size_t keys_ = 0;
  std::size_t erased_ = 0;
};

}  // namespace kvfs::index
