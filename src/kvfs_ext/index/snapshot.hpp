// The index in a file, so that a restart knows at once what is there. Advisory: any bytes may stand in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "fs/directory.hpp"
#include "fs/stream.hpp"
#include "index/key_index.hpp"

namespace kvfs::index {

// What a snapshot has to agree with.
struct SnapshotTerms {
  std::uint64_t chunk_size_bytes = 0;
  // Of the directories that it describes, see layouts::first_level_digest.
  std::uint64_t digest = 0;
};

// The file is: eight bytes of magic, a byte that is 1 while it is whole, seven of padding; then, under the
// checksum in the last eight bytes, chunk size, digest and number of sections; then the sections, each a key
// size, a count and so many keys with their blocks (4 bytes). Numbers have eight bytes and the machine's byte
// order.
class SnapshotReader {
 public:
  // Open the snapshot of a directory and take its mark of being whole away: from now on somebody may store.
  // False where there is none to read. Blocks shortly.
  bool open(const fs::Directory& directory);

  // Hint all keys to the index. True if the snapshot is whole, agrees with `terms` and was read to its end;
  // what does not hold together ends it, and leaves hints that the end of a scan drops. Blocks for long.
  bool read(KeyIndex& index, const SnapshotTerms& terms, const std::atomic<bool>& stop);

 private:
  bool read_sections(KeyIndex& index, const SnapshotTerms& terms, const std::atomic<bool>& stop);
  bool read_section(KeyIndex& index, const std::atomic<bool>& stop);
  bool read_bytes(std::span<std::byte> bytes);
  bool read_number(std::uint64_t& number);

  fs::InputStream stream_;
  std::uint64_t left_bytes_ = 0;
  std::uint64_t checksum_ = 0;
  bool whole_ = false;
};

// Write the present keys through `temporary`; `whole` says that there are no other chunks. Nothing but this
// index's owner changes the directory meanwhile. Blocks.
Status write_snapshot(const fs::Directory& directory, std::string temporary, const KeyIndex& index,
                      const SnapshotTerms& terms, bool whole);

}  // namespace kvfs::index
