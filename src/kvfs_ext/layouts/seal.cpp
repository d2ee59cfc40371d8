// Setting and checking seals.
#include "layouts/seal.hpp"

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/crc32c.hpp"
#include "fs/attributes.hpp"

namespace kvfs::layouts {

namespace {

constexpr const char* kChecksumName = "user.vllm.kv_crc32c";
constexpr const char* kKeyName = "user.kvfs.key";
// What ext4 has room for in an inode of 256 bytes beside the checksum. More would cost each chunk a block.
constexpr std::size_t kKeyBytesMax = 28;

using ChecksumBytes = std::array<std::byte, 4>;

ChecksumBytes big_endian(std::uint32_t value) {
  ChecksumBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(value >> (24 - 8 * i));
  return bytes;
}

std::span<const std::byte> tag_of(std::string_view key) {
  return std::as_bytes(std::span(key)).last(std::min(key.size(), kKeyBytesMax));
}

// A value that is there in part or too long is there, and wrong.
struct Attribute {
  Attribute(const Fd& file, const char* name) : status(fs::get_attribute(file, name, value, size_bytes)) {}
  [[nodiscard]] bool there() const { return status.ok(); }
  [[nodiscard]] bool unreadable() const { return !status.ok() && status.code != ENODATA; }
  [[nodiscard]] bool equals(std::span<const std::byte> expected) const {
    return size_bytes == expected.size() && std::equal(expected.begin(), expected.end(), value.begin());
  }

  std::array<std::byte, kKeyBytesMax> value{};
  std::size_t size_bytes = 0;
  Status status;
};

}  // namespace

Status Seals::open(const fs::Directory& directory, const std::string& temporary, Checksum wanted) {
  mode_ = wanted;
  if (wanted == Checksum::kOff) return Status::success();
  const Status probed = fs::probe_attributes(directory, temporary, kChecksumName);
  if (probed.ok()) return Status::success();
  mode_ = Checksum::kOff;
  return wanted == Checksum::kRequire
             ? Status::failure(ENOTSUP, "setting an attribute (checksum is 'require')")
             : Status::success();
}

Status Seals::set(const Fd& file, std::string_view key, std::span<const std::byte> bytes) const {
  if (!enabled() || key.empty()) return Status::success();
  Status status = fs::set_attribute(file, kChecksumName, big_endian(crc32c(bytes)));
  if (status.ok()) status = fs::set_attribute(file, kKeyName, tag_of(key));
  return status.code == EOPNOTSUPP && !required() ? Status::success() : status;
}

Status Seals::verify(const Fd& file, std::string_view key, std::span<const std::byte> bytes) {
  if (key.empty()) return Status::success();
  if (!enabled()) {
    unverified_loads.fetch_add(1, std::memory_order_relaxed);
    return Status::success();
  }
  const Attribute checksum(file, kChecksumName);
  const Attribute tag(file, kKeyName);
  for (const Attribute* each : {&checksum, &tag}) {
    if (each->unreadable()) return each->status;
  }
  if (required() && !(checksum.there() && tag.there())) return Status::failure(ENODATA, "seal");
  Status status;
  if (tag.there() && !tag.equals(tag_of(key))) status = Status::failure(EBADMSG, "key");
  if (status.ok() && checksum.there() && !checksum.equals(big_endian(crc32c(bytes))))
    status = Status::failure(EBADMSG, "checksum");
  auto& counter = !status.ok() ? damaged_chunks : checksum.there() ? verified_loads : unverified_loads;
  counter.fetch_add(1, std::memory_order_relaxed);
  return status;
}

bool Seals::is_sealed(const Fd& file) {
  return Attribute(file, kChecksumName).there() && Attribute(file, kKeyName).there();
}

}  // namespace kvfs::layouts
