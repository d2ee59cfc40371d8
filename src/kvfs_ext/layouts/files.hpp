// The `files` layout, vLLM's own: one file a chunk, named by the chunk's key.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "fs/directory.hpp"
#include "fs/file.hpp"
#include "fs/ownership.hpp"
#include "fs/publish.hpp"
#include "layouts/seal.hpp"

namespace kvfs::layouts {

// A key is a hash of any length and the group index, big-endian.
inline constexpr std::size_t kGroupIndexBytes = 4;
inline constexpr std::size_t kKeySizeMin = kGroupIndexBytes + 1;
// Long before this the file system says ENAMETOOLONG; the bound keeps lengths sane.
inline constexpr std::size_t kKeySizeMax = 255;

// Events that operations count; shared by all threads of an engine.
struct FilesCounters {
  std::atomic<std::uint64_t> duplicate_stores{0};
  std::atomic<std::uint64_t> healed_files{0};
  std::atomic<std::uint64_t> removed_files{0};
};

// What every operation of one namespace shares. Outlives the operations; thread-safe. All paths are relative
// to `directory`.
struct FilesContext {
  explicit FilesContext(bool use_o_direct) : direct(use_o_direct) {}
  fs::Directory directory;
  fs::Ownership ownership;
  fs::Publish publish = fs::Publish::kRename;
  fs::DirectPolicy direct;
  FilesCounters counters;
  Seals seals;
  // What to do about room, set before the first operation where somebody counts it: a chunk's directory was
  // made; a file in one was removed, or replaced, that counted as so many bytes.
  std::function<void()> on_directory_made;
  std::function<void(const std::string& path, std::uint64_t bytes)> on_removed;
};

// What a file in a chunk's directory counts as, and such a directory, whatever they take (docs/capacity.md):
// a number that stays the same until they are removed.
inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr std::uint64_t kDirectoryBytes = kBlockBytes;
[[nodiscard]] constexpr std::uint64_t counted_bytes(std::uint64_t size_bytes) {
  // A file without blocks may claim any length, and no sum of them must overflow.
  const std::uint64_t believed = size_bytes < std::uint64_t{1} << 40 ? size_bytes : 0;
  return (believed + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

// Where a chunk lies, and what its file is bound to. `key` is not owned; without one the file is neither
// sealed nor verified.
struct ChunkName {
  std::string path;
  std::string_view key;
};

// <hash hex 0:3>/<hash hex 3:5>_g<group>/<hash hex>.bin, as vLLM's FileMapper has it below its base path.
// `key` has between kKeySizeMin and kKeySizeMax bytes.
[[nodiscard]] std::string chunk_path(std::string_view key);

// A name beside `path` that no other writer can have: this process's writer number, its id and a count.
[[nodiscard]] std::string temporary_path(std::string_view path);
// 64 random bits that tell the writers of one directory apart; a forked child has its parent's.
[[nodiscard]] std::uint64_t writer_number();
// The number in the name of such a temporary; none for what others have named.
[[nodiscard]] std::optional<std::uint64_t> writer_of(std::string_view temporary);

// The operations below block on the file system and may run on any thread. On failure the Status
// has the errno; `moved` counts the bytes that crossed the file system.

// Store `bytes` as the chunk through `temporary`, which this call creates and never leaves behind; where that
// is empty, through a file without a name. A file of the right size that is there already makes this a
// success that moves nothing.
Status store_file(FilesContext& context, std::string temporary, const ChunkName& chunk,
                  std::span<const std::byte> bytes, std::size_t& moved);

// A file that is not at its place yet.
struct Unpublished {
  fs::File file;
  std::string temporary;  // empty: it has no name
};

// The two halves of store_file, for those who move the bytes in between by other means. begin_store makes the
// file, unless the chunk `is_there`; end_store seals and publishes it if the bytes were `written`, and in any
// case closes it and leaves nothing else behind.
Status begin_store(FilesContext& context, std::string temporary, const ChunkName& chunk,
                   std::span<const std::byte> bytes, Unpublished& unpublished, bool& is_there);
Status end_store(FilesContext& context, Unpublished unpublished, const ChunkName& chunk,
                 std::span<const std::byte> bytes, const Status& written, bool& is_there);

// The temporary that a store through this context needs; empty where files are published without.
[[nodiscard]] std::string temporary_for(const FilesContext& context, const std::string& path);

// Fill `bytes` from the chunk's file, which must have exactly that size and hold what its seal says (EBADMSG
// otherwise). A file that is proven to be wrong, too short or damaged, is removed. On failure the content of
// `bytes` is unspecified.
Status load_file(FilesContext& context, const ChunkName& chunk, std::span<std::byte> bytes,
                 std::size_t& moved);

// The two halves of load_file, for those who move the bytes in between by other means. begin_load opens the
// file and checks its size; end_load says what `moved` bytes until the end mean, and verifies them.
Status begin_load(FilesContext& context, const ChunkName& chunk, std::span<std::byte> bytes, fs::File& file);
Status end_load(FilesContext& context, const ChunkName& chunk, const fs::File& file,
                std::span<std::byte> bytes, std::size_t moved);

// Remove the chunk at `path`, and say how many bytes it counted as; false if it was not there, which is no
// failure.
bool remove_chunk(FilesContext& context, const std::string& path, Status& status, std::uint64_t& bytes);
// Remove the directory that the chunk at `path` lay in, if it is empty; false if it stays, or another has
// removed it. The first level stays, 4,096 directories at most. On an ext4 without a journal this takes 1 to
// 2 ms, thirty times as long as removing the chunk (measured).
bool prune(FilesContext& context, const std::string& path);

// Whether a chunk of `size_bytes` lies at `path`: success, ENOENT, or what is wrong with it.
Status lookup_file(const FilesContext& context, const std::string& path, std::size_t size_bytes);

// Whether a chunk of some size lies at `path`: a regular file that is not empty.
[[nodiscard]] bool exists_file(const std::string& path);

}  // namespace kvfs::layouts
