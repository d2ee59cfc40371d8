// Writing and reading the index's file.
#include "index/snapshot.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace kvfs::index {

namespace {

constexpr const char* kName = "kvfs.index";
constexpr char kMagic[] = "KVFSIDX2";
constexpr std::size_t kWholeOffset = 8;
constexpr std::size_t kHeadBytes = 16;
constexpr std::size_t kKeySizeMin = 5;
constexpr std::size_t kBlocksBytes = sizeof(std::uint32_t);
constexpr std::size_t kUseBytes = sizeof(Use);
constexpr std::size_t kBatchBytes = std::size_t{1} << 18;

// Tells damage, not intent: whoever may write the file may write the directory.
std::uint64_t checksum_of(std::span<const std::byte> bytes, std::uint64_t checksum) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15U;
  while (!bytes.empty()) {
    std::uint64_t word = 0;
    const std::size_t size = std::min(sizeof word, bytes.size());
    std::memcpy(&word, bytes.data(), size);
    checksum = (checksum ^ word) * kFactor;
    checksum ^= checksum >> 32;
    bytes = bytes.subspan(size);
  }
  return checksum;
}

// Appends to a file and keeps the checksum of it.
class Writer {
 public:
  explicit Writer(fs::OutputStream& stream) : stream_(stream) { pending_.reserve(kBatchBytes + 512); }

  void put(const void* bytes, std::size_t size) {
    const auto* const first = static_cast<const std::byte*>(bytes);
    pending_.insert(pending_.end(), first, first + size);
  }
  void put_number(std::uint64_t number) { put(&number, sizeof number); }
  // The end of a piece that is read at once, too: the checksum goes by pieces.
  void end_piece() {
    checksum_ = checksum_of(std::span(pending_).subspan(summed_), checksum_);
    summed_ = pending_.size();
    if (pending_.size() >= kBatchBytes) flush();
  }
  Status finish() {
    put_number(checksum_);
    flush();
    return status_;
  }
  void flush() {
    if (status_.ok()) status_ = stream_.write(pending_);
    pending_.clear();
    summed_ = 0;
  }

 private:
  fs::OutputStream& stream_;
  std::vector<std::byte> pending_;
  std::size_t summed_ = 0;
  std::uint64_t checksum_ = 0;
  Status status_;
};

}  // namespace

bool SnapshotReader::open(const fs::Directory& directory) {
  if (!stream_.open(directory, kName).ok() || stream_.size_bytes() < kHeadBytes + sizeof(std::uint64_t))
    return false;
  std::byte head[kHeadBytes];
  if (!stream_.read(head).ok() || std::memcmp(head, kMagic, kWholeOffset) != 0) return false;
  left_bytes_ = stream_.size_bytes() - kHeadBytes - sizeof(std::uint64_t);
  // If the mark stays, nobody may believe it: neither this engine nor, after stores, the next one.
  whole_ = head[kWholeOffset] == std::byte{1} && stream_.patch(kWholeOffset, std::byte{0}).ok();
  return true;
}

bool SnapshotReader::read(KeyIndex& index, const SnapshotTerms& terms, const std::atomic<bool>& stop) {
  return read_sections(index, terms, stop) && whole_;
}

bool SnapshotReader::read_sections(KeyIndex& index, const SnapshotTerms& terms,
                                   const std::atomic<bool>& stop) {
  std::uint64_t chunk_size_bytes = 0;
  std::uint64_t digest = 0;
  std::uint64_t sections = 0;
  if (!read_number(chunk_size_bytes) || chunk_size_bytes != terms.chunk_size_bytes) return false;
  if (!read_number(digest) || !read_number(sections)) return false;
  for (std::uint64_t i = 0; i < sections; ++i) {
    if (!read_section(index, stop)) return false;
  }
  std::uint64_t checksum = 0;
  const auto bytes = std::as_writable_bytes(std::span(&checksum, 1));
  return left_bytes_ == 0 && stream_.read(bytes).ok() && checksum == checksum_ && digest == terms.digest;
}

bool SnapshotReader::read_section(KeyIndex& index, const std::atomic<bool>& stop) {
  std::uint64_t key_size = 0;
  std::uint64_t count = 0;
  if (!read_number(key_size) || !read_number(count)) return false;
  if (key_size < kKeySizeMin || key_size > kKeySizeMax) return false;
  const std::size_t entry_bytes = key_size + kBlocksBytes + kUseBytes;
  if (count > left_bytes_ / entry_bytes) return false;
  const std::size_t batch_entries = kBatchBytes / entry_bytes;
  std::vector<std::byte> batch;
  while (count > 0) {
    if (stop.load(std::memory_order_relaxed)) return false;
    const std::size_t entries = std::min<std::uint64_t>(count, batch_entries);
    batch.resize(entries * entry_bytes);
    if (!read_bytes(batch)) return false;
    for (std::size_t at = 0; at < batch.size(); at += entry_bytes) {
      std::uint32_t blocks;
      Use use;
      std::memcpy(&blocks, batch.data() + at + key_size, kBlocksBytes);
      std::memcpy(&use, batch.data() + at + key_size + kBlocksBytes, kUseBytes);
      index.hint({reinterpret_cast<const char*>(batch.data()) + at, static_cast<std::size_t>(key_size)},
                 blocks, use & kUseMax);
    }
    count -= entries;
  }
  return true;
}

bool SnapshotReader::read_bytes(std::span<std::byte> bytes) {
  if (bytes.size() > left_bytes_ || !stream_.read(bytes).ok()) return false;
  left_bytes_ -= bytes.size();
  checksum_ = checksum_of(bytes, checksum_);
  return true;
}

bool SnapshotReader::read_number(std::uint64_t& number) {
  return read_bytes(std::as_writable_bytes(std::span(&number, 1)));
}

Status write_snapshot(const fs::Directory& directory, std::string temporary, const KeyIndex& index,
                      const SnapshotTerms& terms, bool whole) {
  fs::OutputStream stream;
  if (const Status created = stream.create(directory, std::move(temporary)); !created.ok()) return created;
  Writer writer(stream);
  std::byte head[kHeadBytes] = {};
  std::memcpy(head, kMagic, kWholeOffset);
  head[kWholeOffset] = std::byte{whole};
  if (const Status written = stream.write(head); !written.ok()) return written;
  std::uint64_t sections = 0;
  for (std::size_t key_size = kKeySizeMin; key_size <= kKeySizeMax; ++key_size)
    sections += index.has_size(key_size) ? 1 : 0;
  for (const std::uint64_t number : {terms.chunk_size_bytes, terms.digest, sections}) {
    writer.put_number(number);
    writer.end_piece();
  }
  for (std::size_t key_size = kKeySizeMin; key_size <= kKeySizeMax; ++key_size) {
    if (!index.has_size(key_size)) continue;
    std::uint64_t count = 0;
    index.each_present(key_size, [&](std::string_view, const Record&) { ++count; });
    for (const std::uint64_t number : {std::uint64_t{key_size}, count}) {
      writer.put_number(number);
      writer.end_piece();
    }
    const std::size_t batch_entries = kBatchBytes / (key_size + kBlocksBytes + kUseBytes);
    std::size_t entries = 0;
    index.each_present(key_size, [&](std::string_view key, const Record& record) {
      writer.put(key.data(), key.size());
      writer.put(&record.blocks, kBlocksBytes);
      const Use use = record.last_use();
      writer.put(&use, kUseBytes);
      if (++entries % batch_entries == 0) writer.end_piece();
    });
    if (entries % batch_entries != 0) writer.end_piece();
  }
  if (const Status written = writer.finish(); !written.ok()) return written;
  return stream.publish(kName);
}

}  // namespace kvfs::index
