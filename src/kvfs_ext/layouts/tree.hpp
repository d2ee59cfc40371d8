// All files below a root: what they take on disk, and the chunks that nobody uses any more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fs/directory.hpp"
#include "fs/file.hpp"

namespace kvfs::layouts {

// What everything below `root` takes on disk, itself included; a chunk's file and its directory count as more
// where that is less than what a store reserves for them. Links are not followed, other file systems not
// entered, and what this user may not read is passed over. False after `stop`. Blocks for long.
bool count_tree(const fs::Directory& root, const std::atomic<bool>& stop, std::uint64_t& bytes);

// A chunk of a namespace that no engine has open.
struct UnusedChunk {
  std::uint64_t written_ns = 0;
  std::uint64_t counted_bytes = 0;
  std::string path;  // relative to the root
};

// The oldest chunks in namespaces below `root` that no engine has open, oldest first, at most `count`; `own`
// is the caller's namespace. Blocks for long.
[[nodiscard]] std::vector<UnusedChunk> unused_chunks(const fs::Directory& root, const fs::Entry& own,
                                                     std::size_t count, const std::atomic<bool>& stop);

// Remove it, and its directory if that is empty then, unless it has changed since: what both counted as.
std::uint64_t remove_unused(const fs::Directory& root, const UnusedChunk& chunk, Status& status);

}  // namespace kvfs::layouts
