// CRC32C in three streams at a time.
#include "base/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace kvfs {

namespace {

// The polynomial's coefficients, bit 31 that of x^0.
constexpr std::uint32_t kPolynomial = 0x82f63b78U;

using Table = std::array<std::uint32_t, 256>;

constexpr std::uint32_t times_x(std::uint32_t value) {
  return (value & 1U) != 0 ? value >> 1 ^ kPolynomial : value >> 1;
}

// tables[n][b]: what byte b does to the checksum n bytes later.
constexpr std::array<Table, 8> make_byte_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = times_x(value);
    tables[0][byte] = value;
  }
  for (std::size_t later = 1; later < tables.size(); ++later) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[later - 1][byte];
      tables[later][byte] = before >> 8 ^ tables[0][before & 0xffU];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kByteTables = make_byte_tables();

std::uint32_t step(std::uint32_t crc, std::byte byte) {
  return crc >> 8 ^ kByteTables[0][(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xffU];
}

// Without the inversions at both ends, as all that follows.
std::uint32_t extend_by_tables(std::uint32_t crc, std::span<const std::byte> bytes) {
  if constexpr (std::endian::native == std::endian::little) {
    for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data(), sizeof word);
      word ^= crc;
      crc = 0;
      for (std::size_t at = 0; at < 8; ++at) crc ^= kByteTables[7 - at][word >> 8 * at & 0xffU];
    }
  }
  for (const std::byte byte : bytes) crc = step(crc, byte);
  return crc;
}

#if defined(__x86_64__)

constexpr std::uint32_t multiply(std::uint32_t left, std::uint32_t right) {
  std::uint32_t product = 0;
  for (std::uint32_t bit = 0x80000000U; bit != 0; bit >>= 1, right = times_x(right)) {
    if ((left & bit) != 0) product ^= right;
  }
  return product;
}

// Appends a fixed number of zero bytes to what a checksum covers.
class Shift {
 public:
  explicit constexpr Shift(std::size_t zero_bytes) {
    // x^(8 * zero_bytes), by squaring.
    std::uint32_t factor = 0x80000000U;
    std::uint32_t power = times_x(factor);
    for (std::size_t bits = 8 * zero_bytes; bits != 0; bits >>= 1, power = multiply(power, power)) {
      if ((bits & 1U) != 0) factor = multiply(factor, power);
    }
    // A linear map: it is known once it is known for each bit.
    std::array<std::uint32_t, 32> of_bit{};
    for (std::uint32_t bit = 0; bit < 32; ++bit) of_bit[bit] = multiply(std::uint32_t{1} << bit, factor);
    for (std::size_t byte = 0; byte < 4; ++byte) {
      for (std::size_t value = 1; value < 256; ++value) {
        const std::size_t lowest = static_cast<std::size_t>(std::countr_zero(value));
        tables_[byte][value] = tables_[byte][value & (value - 1)] ^ of_bit[8 * byte + lowest];
      }
    }
  }

  [[nodiscard]] std::uint32_t operator()(std::uint32_t crc) const {
    return tables_[0][crc & 0xffU] ^ tables_[1][crc >> 8 & 0xffU] ^ tables_[2][crc >> 16 & 0xffU] ^
           tables_[3][crc >> 24];
  }

 private:
  std::array<Table, 4> tables_{};
};

// The instruction takes three cycles, and one can begin in each: three streams keep it busy. Long ones, so
// that joining them costs nothing, then short ones for what is left.
constexpr std::size_t kLong = 4096;
constexpr std::size_t kShort = 256;
constexpr Shift kShiftLong{kLong};
constexpr Shift kShiftShort{kShort};

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

template <std::size_t kStream>
[[gnu::target("sse4.2")]] std::uint32_t extend_streams(std::uint32_t crc, std::span<const std::byte>& bytes,
                                                       const Shift& shift) {
  for (; bytes.size() >= 3 * kStream; bytes = bytes.subspan(3 * kStream)) {
    const std::byte* const begin = bytes.data();
    std::uint64_t first = crc;
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t at = 0; at < kStream; at += 8) {
      first = _mm_crc32_u64(first, word_at(begin + at));
      second = _mm_crc32_u64(second, word_at(begin + kStream + at));
      third = _mm_crc32_u64(third, word_at(begin + 2 * kStream + at));
    }
    crc = shift(static_cast<std::uint32_t>(first)) ^ static_cast<std::uint32_t>(second);
    crc = shift(crc) ^ static_cast<std::uint32_t>(third);
  }
  return crc;
}

[[gnu::target("sse4.2")]] std::uint32_t extend_by_instruction(std::uint32_t crc,
                                                              std::span<const std::byte> bytes) {
  crc = extend_streams<kLong>(crc, bytes, kShiftLong);
  crc = extend_streams<kShort>(crc, bytes, kShiftShort);
  for (; bytes.size() >= 8; bytes = bytes.subspan(8))
    crc = static_cast<std::uint32_t>(_mm_crc32_u64(crc, word_at(bytes.data())));
  for (const std::byte byte : bytes) crc = _mm_crc32_u8(crc, std::to_integer<unsigned char>(byte));
  return crc;
}

#endif

}  // namespace

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes) {
  return ~extend_by_tables(~std::uint32_t{0}, bytes);
}

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#if defined(__x86_64__)
  static const bool kHasInstruction = __builtin_cpu_supports("sse4.2") != 0;
  if (kHasInstruction) return ~extend_by_instruction(~std::uint32_t{0}, bytes);
#endif
  return crc32c_by_tables(bytes);
}

}  // namespace kvfs
