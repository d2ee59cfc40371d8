// Small files that are read or written from end to end: through the page cache, whole or not at all.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::fs {

// A regular file that is opened for reading and for changing it in place. One thread at a time.
class InputStream {
 public:
  // Links are not followed; anything but a regular file fails with EBADMSG.
  Status open(const Directory& directory, const std::string& name);
  // Fill `bytes` with what comes next; EBADMSG where the file ends before. Blocks.
  Status read(std::span<std::byte> bytes);
  // Write `byte` at an offset. Blocks.
  Status patch(std::size_t offset, std::byte byte);
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }

 private:
  Fd file_;
  std::size_t size_bytes_ = 0;
};

// A new file that takes the place of another once it is whole. One thread at a time. Dropped unless
// published.
class OutputStream {
 public:
  OutputStream() = default;
  OutputStream(const OutputStream&) = delete;
  OutputStream& operator=(const OutputStream&) = delete;
  ~OutputStream();

  // Create `temporary` (0600), which must not be there. Outlived by `directory`.
  Status create(const Directory& directory, std::string temporary);
  // Append. Blocks.
  Status write(std::span<const std::byte> bytes);
  // Give the file its name, in place of what had it.
  Status publish(const std::string& name);

 private:
  const Directory* directory_ = nullptr;
  std::string temporary_;
  Fd file_;
};

}  // namespace kvfs::fs
