// Fuzz target: whatever bytes stand in `kvfs.index`, no key is a hit without a file once the scan has ended.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "fixture.hpp"
#include "index/key_index.hpp"
#include "index/snapshot.hpp"
#include "layouts/files.hpp"
#include "layouts/files_scan.hpp"

namespace {

using kvfs::index::KeyIndex;
using kvfs::testing::require;
using kvfs::testing::scratch;

constexpr std::size_t kChunkBytes = 64;
constexpr std::size_t kHeadBytes = 16;
constexpr std::size_t kWholeOffset = 8;
constexpr std::size_t kNumberBytes = 8;
constexpr std::size_t kBatchBytes = std::size_t{1} << 18;
// A few hundred bytes for each byte of the file; each length of keys costs its shards.
constexpr std::size_t kIndexBytesMax = std::size_t{256} << 20;

using Known = std::map<std::string, std::tuple<std::uint32_t, std::uint64_t>, std::less<>>;

Known known_of(const KeyIndex& index) {
  Known known;
  for (std::size_t size = 5; size <= kvfs::index::kKeySizeMax; ++size)
    index.each_present(size, [&](std::string_view key, const kvfs::index::Record& record) {
      known.emplace(key, std::tuple(record.blocks, record.last_use()));
    });
  return known;
}

// The namespace that the snapshot lies in: three chunks, the same in every run, as in harness/fuzz/seeds.py.
const std::vector<std::string>& chunks() {
  static const auto& kKeys = *[] {
    auto* const keys = new std::vector<std::string>;
    for (const char letter : {'a', 'b', 'c'}) {
      const std::string& key = keys->emplace_back(std::string(32, letter) + std::string(4, '\0'));
      const std::string path = kvfs::layouts::chunk_path(key);
      const std::string parent = path.substr(0, path.rfind('/'));
      bool made = false;
      require(kvfs::fs::make_directories(scratch().at(), parent, 0700, made).ok(), "a directory can be made");
      const std::vector<std::uint8_t> content(kChunkBytes, static_cast<std::uint8_t>(letter));
      (void)kvfs::testing::write_file(path.c_str(), content);
      // So that the digest of the directories is the same in every run.
      const struct timespec times[2] = {};
      require(::utimensat(scratch().at(), path.substr(0, 3).c_str(), times, 0) == 0, "times can be set");
    }
    return keys;
  }();
  return kKeys;
}

std::uint64_t mixed(const std::uint8_t* bytes, std::size_t size, std::uint64_t checksum) {
  for (std::size_t at = 0; at < size; at += kNumberBytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + at, std::min(kNumberBytes, size - at));
    checksum = (checksum ^ word) * 0x9e3779b97f4a7c15U;
    checksum ^= checksum >> 32;
  }
  return checksum;
}

std::uint64_t number_at(const std::uint8_t* data, std::size_t at) {
  std::uint64_t number;
  std::memcpy(&number, data + at, sizeof number);
  return number;
}

// Make the file hold together where it does not: nobody guesses 64 bits. It ends behind its sections.
std::size_t repair(std::uint8_t* data, std::size_t size) {
  if (size < kHeadBytes + 4 * kNumberBytes) return size;
  std::memcpy(data, "KVFSIDX2\1", kWholeOffset + 1);
  std::size_t at = kHeadBytes;
  const std::uint64_t terms[] = {kChunkBytes, kvfs::layouts::first_level_digest(scratch())};
  std::memcpy(data + at, terms, sizeof terms);
  std::uint64_t checksum = 0;
  std::uint64_t sections = 0;
  const std::size_t end = size - kNumberBytes;
  std::size_t next = at + 3 * kNumberBytes;
  while (sections < number_at(data, at + 2 * kNumberBytes) && next + 2 * kNumberBytes <= end) {
    const std::uint64_t entry = number_at(data, next) + 12;
    if (entry < 17 || entry > 267) break;
    const std::uint64_t room = (end - next - 2 * kNumberBytes) / entry;
    const std::uint64_t count = std::min(room, number_at(data, next + kNumberBytes));
    std::memcpy(data + next + kNumberBytes, &count, sizeof count);
    next += 2 * kNumberBytes + count * entry;
    ++sections;
  }
  std::memcpy(data + at + 2 * kNumberBytes, &sections, sizeof sections);
  // The reader's pieces: each number, then each section in batches.
  const auto sum_piece = [&](std::size_t bytes) {
    checksum = mixed(data + at, bytes, checksum);
    at += bytes;
  };
  for (int i = 0; i < 3; ++i) sum_piece(kNumberBytes);
  while (at < next) {
    const std::uint64_t entry = number_at(data, at) + 12;
    std::uint64_t bytes = number_at(data, at + kNumberBytes) * entry;
    sum_piece(kNumberBytes);
    sum_piece(kNumberBytes);
    for (const std::uint64_t batch = kBatchBytes / entry * entry; bytes > 0;) {
      const std::uint64_t piece = std::min(bytes, batch);
      sum_piece(piece);
      bytes -= piece;
    }
  }
  std::memcpy(data + at, &checksum, sizeof checksum);
  return at + kNumberBytes;
}

bool read(KeyIndex& index) {
  const std::atomic<bool> stop{false};
  kvfs::index::SnapshotReader reader;
  if (!reader.open(scratch())) return false;
  return reader.read(index, {kChunkBytes, kvfs::layouts::first_level_digest(scratch())}, stop);
}

void scan(KeyIndex& index) {
  const std::atomic<bool> stop{false};
  const kvfs::layouts::FilesScan job{
      kChunkBytes, stop, [&](std::string_view key, std::uint64_t) { index.add(key, kChunkBytes, 1); },
      [](const std::string&) {}, [](const std::string&) {}};
  require(kvfs::layouts::scan_files(scratch(), job), "the scan reads everything");
  index.drop_hints();
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t size_max);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t size_max,
                                               unsigned seed) {
  (void)chunks();
  const std::size_t mutated = LLVMFuzzerMutate(data, size, size_max);
  return seed % 4 == 0 ? mutated : repair(data, mutated);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::string>& keys = chunks();
  const kvfs::Fd file = kvfs::testing::write_file("kvfs.index", {data, size});
  KeyIndex index(1.0);
  index.set_scanning(true);
  const bool whole = read(index);
  char mark = 0;
  if (size > kHeadBytes + kNumberBytes && std::memcmp(data, "KVFSIDX2\1", kWholeOffset + 1) == 0)
    require(::pread(file.get(), &mark, 1, kWholeOffset) == 1 && mark == 0, "a snapshot is believed once");
  require(index.memory_bytes() <= kIndexBytesMax, "a small file takes little memory");
  if (whole) {
    // What is read is what would be written, and reads the same again.
    const Known known = known_of(index);
    const std::uint64_t digest = kvfs::layouts::first_level_digest(scratch());
    require(kvfs::index::write_snapshot(scratch(), "kvfs.index.tmp", index, {kChunkBytes, digest}, true).ok(),
            "a snapshot can be written");
    KeyIndex again(1.0);
    require(read(again) && known_of(again) == known, "a snapshot that was written reads the same");
  }
  scan(index);
  const Known known = known_of(index);
  require(known.size() == keys.size() && index.present() == keys.size(),
          "after the scan only files are hits");
  for (const std::string& key : keys) require(known.contains(key), "after the scan every file is a hit");
  return 0;
}
