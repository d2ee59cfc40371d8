// CRC32C, the checksum of chunks: Castagnoli's polynomial, reflected, as in iSCSI, ext4 and vllm#57912.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvfs {

// By the processor's instruction where it has one (x86-64: as fast as memory), else through tables.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes);

// Through tables alone: what processors without the instruction run, and what the other is tested against.
[[nodiscard]] std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes);

}  // namespace kvfs
