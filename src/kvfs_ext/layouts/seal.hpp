// A chunk's seal: what its file says in extended attributes about its content and its key. docs/integrity.md
// has the contract.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::layouts {

enum class Checksum : std::uint8_t { kOff, kAuto, kRequire };

// How a namespace's files are sealed, and what came of it. Thread-safe once it is opened.
class Seals {
 public:
  // Find out whether files can be sealed where `directory` is. ENOTSUP where they must be and cannot. Blocks.
  Status open(const fs::Directory& directory, const std::string& temporary, Checksum wanted);

  [[nodiscard]] bool enabled() const { return mode_ != Checksum::kOff; }
  [[nodiscard]] bool required() const { return mode_ == Checksum::kRequire; }

  // Seal a new file that holds `bytes`. Without a key it is left as it is. Blocks.
  Status set(const Fd& file, std::string_view key, std::span<const std::byte> bytes) const;
  // Compare `bytes`, which are the whole content of `file`, with its seal: EBADMSG if they are damaged or
  // another key's, ENODATA if a seal is required and not whole. Blocks.
  Status verify(const Fd& file, std::string_view key, std::span<const std::byte> bytes);
  // Whether the file has a whole seal, right or wrong. Blocks.
  [[nodiscard]] static bool is_sealed(const Fd& file);

  std::atomic<std::uint64_t> verified_loads{0};
  std::atomic<std::uint64_t> unverified_loads{0};
  std::atomic<std::uint64_t> damaged_chunks{0};

 private:
  Checksum mode_ = Checksum::kOff;
};

}  // namespace kvfs::layouts
