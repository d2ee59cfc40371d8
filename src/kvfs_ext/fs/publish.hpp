// How a file that is whole gets its name.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::fs {

// A file without a name (O_TMPFILE) leaves nothing behind when its writer is killed, and costs one directory
// entry where a temporary costs two. Not every file system has it, and naming it by its descriptor needs
// CAP_DAC_READ_SEARCH before Linux 6.10; /proc does the same for everybody.
enum class Publish : std::uint8_t { kRename, kLinkDescriptor, kLinkProc };

// Try them in `directory` and say which works; a FUSE file system gets kRename, because it may report a
// failed write as late as in close(), when a linked file would have its name already. Blocks.
[[nodiscard]] Publish probe_publish(const Directory& directory, const std::string& temporary);

// Give the nameless file `path`, which is relative to `at`. EEXIST when that is taken.
Status link_file(const Fd& file, int at, const std::string& path, Publish how);

}  // namespace kvfs::fs
