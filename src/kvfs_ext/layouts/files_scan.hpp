// The `files` layout's directories, read from end to end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "fs/directory.hpp"

namespace kvfs::layouts {

struct FilesScan {
  std::size_t chunk_size_bytes = 0;
  const std::atomic<bool>& stop;
  // Called with the key of every chunk, and when it was written, in seconds of the calendar; counts are the
  // caller's.
  std::function<void(std::string_view key, std::uint64_t written_s)> on_chunk;
  // Called with the path of every temporary in a chunk's directory.
  std::function<void(const std::string& path)> on_temporary;
  // Called with the path that something would have in a chunk's directory that is empty: it ends with a
  // slash.
  std::function<void(const std::string& path)> on_empty;
};

// Report every regular file of the chunk's size that lies where its key belongs; links are not followed and
// all else is passed over. True if everything was read: false after `stop`, or if some directory could not
// be. Blocks for long.
bool scan_files(const fs::Directory& directory, const FilesScan& scan);

// Whether `name` in the directory `first`/`leaf` of a namespace is where some chunk lies.
[[nodiscard]] bool is_chunk_path(const std::string& first, const std::string& leaf, const std::string& name);
// Whether a directory of this name, two levels below a namespace, is one for chunks.
[[nodiscard]] bool is_leaf(std::string_view name);

// Names and times of the first level's directories in a number: another one when a chunk has come into a leaf
// that was not there before. Blocks for some milliseconds.
[[nodiscard]] std::uint64_t first_level_digest(const fs::Directory& directory);

}  // namespace kvfs::layouts
