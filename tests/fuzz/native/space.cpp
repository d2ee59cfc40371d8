// Fuzz target: whatever bytes stand in `kvfs.space`, they are a table that adds up, or an empty one.
#include <cstring>
#include <numeric>

#include "fixture.hpp"
#include "fs/space_file.hpp"

namespace {

using kvfs::fs::SpaceTable;
using kvfs::testing::require;

constexpr std::size_t kHeadBytes = 24;
constexpr std::size_t kWordBytes = 8;

// A generator of the mutator's own: libFuzzer has one and does not share it.
std::uint64_t next(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15U;
  std::uint64_t mixed = (state ^ state >> 30) * 0xbf58476d1ce4e5b9U;
  return mixed ^ mixed >> 27;
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t size_max);

// Half of the time a row of slots gets numbers of one magnitude: byte by byte, 8,216 bytes are many.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                               unsigned seed) {
  std::uint64_t state = seed;
  if (size < kHeadBytes + kWordBytes || next(state) % 2 == 0) return LLVMFuzzerMutate(data, size, size_max);
  const std::size_t words = size / kWordBytes - 1;
  const std::size_t first = 1 + next(state) % words;
  const std::size_t count = 1 + next(state) % (words - first + 1);
  const std::uint64_t magnitude = next(state) % 64;
  for (std::size_t word = first; word < first + count; ++word) {
    const std::uint64_t number = (std::uint64_t{1} << magnitude) - next(state) % 2;
    const std::uint64_t value = next(state) % 4 == 0 ? 0 - number : number;
    std::memcpy(data + word * kWordBytes, &value, sizeof value);
  }
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  (void)kvfs::testing::write_file("kvfs.space", {data, size});
  kvfs::fs::SpaceFile file;
  bool alone = false;
  require(file.open(kvfs::testing::scratch(), alone).ok() && alone, "the file can be opened");
  SpaceTable left;
  const auto stored = std::int64_t{1} << 40;
  const auto join = [&](SpaceTable& table) {
    require(!table.counted || table.total() >= 0, "nothing takes less than no room");
    table.unowned += std::exchange(table.slots[table.mine], 0);
    if (!table.counted) require(table.total() <= table.unowned, "the dead own nothing");
    table.slots[table.mine] += stored;
    left = table;
  };
  require(file.update(join).ok(), "the file can be changed");
  const auto look = [&](SpaceTable& table) {
    // What cannot be trusted, an empty table, is counted anew.
    if (!table.counted && table.total() == 0) return;
    require(table.counted == left.counted && table.unowned == left.unowned && table.slots == left.slots,
            "what was written is what is read");
    require(table.total() == left.unowned + stored, "it adds up");
  };
  require(file.update(look).ok(), "the file can be changed again");
  return 0;
}
