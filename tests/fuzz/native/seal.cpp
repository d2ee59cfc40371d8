// Fuzz target: whatever stands in the attributes of a chunk's file, only the right seal is believed.
//
// An input is a byte of flags, the length of the checksum's value, that value and the key's. See
// harness/fuzz/seal_input.py, which has the same format.
#include <sys/xattr.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <vector>

#include "base/crc32c.hpp"
#include "fixture.hpp"
#include "layouts/files.hpp"
#include "layouts/seal.hpp"

namespace {

using kvfs::layouts::Checksum;
using kvfs::layouts::Seals;
using kvfs::testing::require;

constexpr std::string_view kKey = "the hash of a block, 32 bytes longgroup";
constexpr std::size_t kTagBytes = 28;
constexpr std::array<const char*, 2> kNames = {"user.vllm.kv_crc32c", "user.kvfs.key"};

enum Flag : unsigned { kHasChecksum = 1, kHasTag = 2, kRequired = 4, kRightChecksum = 8, kRightTag = 16 };

using Bytes = std::vector<std::uint8_t>;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const unsigned flags = data[0];
  const std::size_t length = std::min<std::size_t>(data[1], size - 2);
  const std::string_view content = "what a chunk holds";
  const std::uint32_t crc = kvfs::crc32c(std::as_bytes(std::span(content)));
  const Bytes right_checksum{static_cast<std::uint8_t>(crc >> 24), static_cast<std::uint8_t>(crc >> 16),
                             static_cast<std::uint8_t>(crc >> 8), static_cast<std::uint8_t>(crc)};
  const Bytes right_tag(kKey.end() - kTagBytes, kKey.end());
  const std::array<Bytes, 2> values = {
      (flags & kRightChecksum) != 0 ? right_checksum : Bytes(data + 2, data + 2 + length),
      (flags & kRightTag) != 0 ? right_tag : Bytes(data + 2 + length, data + size)};

  static Seals& optional = *new Seals;
  static Seals& required = *new Seals;
  [[maybe_unused]] static const bool kOpened = [] {
    require(optional.open(kvfs::testing::scratch(), "probe.tmp", Checksum::kAuto).ok(),
            "seals can be opened");
    require(optional.enabled(), "the file system of $TMPDIR has extended attributes");
    require(required.open(kvfs::testing::scratch(), "probe.tmp", Checksum::kRequire).ok(),
            "seals can be opened");
    return true;
  }();

  const kvfs::Fd file = kvfs::testing::write_file("chunk", {});
  std::array<bool, 2> there = {(flags & kHasChecksum) != 0, (flags & kHasTag) != 0};
  for (std::size_t i = 0; i < there.size(); ++i) {
    if (!there[i]) {
      (void)::fremovexattr(file.get(), kNames[i]);
    } else if (::fsetxattr(file.get(), kNames[i], values[i].data(), values[i].size(), 0) != 0) {
      return 0;  // larger than this file system has room for
    }
  }
  Seals& seals = (flags & kRequired) != 0 ? required : optional;
  const kvfs::Status status = seals.verify(file, kKey, std::as_bytes(std::span(content)));
  const bool whole = there[0] && there[1];
  const bool right = (!there[0] || values[0] == right_checksum) && (!there[1] || values[1] == right_tag);
  require(Seals::is_sealed(file) == whole, "a seal is whole when both attributes are there");
  const int expected = (flags & kRequired) != 0 && !whole ? ENODATA : right ? 0 : EBADMSG;
  require(status.code == expected, "a load says what the seal says");
  return 0;
}
