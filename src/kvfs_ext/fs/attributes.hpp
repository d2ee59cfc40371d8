// Extended attributes of files.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::fs {

// Set `name` to `value`. Blocks. EOPNOTSUPP where the file system has none.
Status set_attribute(const Fd& file, const char* name, std::span<const std::byte> value);

// Read `name` into `value`; `size_bytes` is how long it is, more than fits if it is longer than that. ENODATA
// where the file has none of that name, or the file system none at all. Blocks.
Status get_attribute(const Fd& file, const char* name, std::span<std::byte> value, std::size_t& size_bytes);

// Whether files in a directory can have the attribute `name`: tried on a new one, `temporary`, that is gone
// afterwards; where nothing can be made, reading has to do. Blocks.
Status probe_attributes(const Directory& directory, const std::string& temporary, const char* name);

}  // namespace kvfs::fs
