// What lies in a directory, one level of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/file.hpp"

namespace kvfs::fs {

// Open the directory `name` in `at` to list it and to open what is in it. A link fails with ELOOP or ENOTDIR.
// Blocks.
Status open_directory(int at, const char* name, Fd& directory);

// Reads names with a buffer that is used again and again. One thread at a time.
class Listing {
 public:
  Listing() : buffer_(kBufferBytes) {}

  // The names in an open directory, "." and ".." left out, replacing `names`. Blocks.
  Status read(const Fd& directory, std::vector<std::string>& names);

 private:
  static constexpr std::size_t kBufferBytes = std::size_t{32} << 10;
  std::vector<std::byte> buffer_;
};

}  // namespace kvfs::fs
