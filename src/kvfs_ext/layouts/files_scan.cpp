// Finding all chunks of a namespace.
#include "layouts/files_scan.hpp"

#include <cerrno>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "fs/file.hpp"
#include "fs/listing.hpp"
#include "layouts/files.hpp"

namespace kvfs::layouts {

namespace {

constexpr std::string_view kSuffix = ".bin";
constexpr std::string_view kTemporarySuffix = ".tmp";

int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return -1;
}

bool is_hex(std::string_view text) {
  for (const char digit : text) {
    if (hex_value(digit) < 0) return false;
  }
  return !text.empty();
}

// Directories that may hold chunks: two or three digits, and below them up to two digits and a group.
bool is_first_level(std::string_view name) { return name.size() >= 2 && name.size() <= 3 && is_hex(name); }

// The key whose file is `<first>/<leaf>/<name>`; empty if there is none.
std::string key_of(const std::string& first, const std::string& leaf, const std::string& name) {
  if (!name.ends_with(kSuffix)) return {};
  const std::string_view digits = std::string_view(name).substr(0, name.size() - kSuffix.size());
  if (!is_hex(digits) || digits.size() % 2 != 0 || digits.size() / 2 + kGroupIndexBytes > kKeySizeMax)
    return {};
  std::string key;
  key.reserve(digits.size() / 2 + kGroupIndexBytes);
  for (std::size_t i = 0; i < digits.size(); i += 2)
    key += static_cast<char>(hex_value(digits[i]) << 4 | hex_value(digits[i + 1]));
  const std::size_t mark = leaf.find("_g");
  if (mark == std::string::npos) return {};
  std::uint64_t group = 0;
  for (const char digit : std::string_view(leaf).substr(mark + 2)) {
    if (digit < '0' || digit > '9') return {};
    group = group * 10 + static_cast<std::uint64_t>(digit - '0');
    if (group > 0xffffffffU) return {};
  }
  for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>(group >> shift & 0xff);
  // Only the one way to write a key counts, and only in its own directory.
  return chunk_path(key) == first + '/' + leaf + '/' + name ? key : std::string();
}

// What is gone by the time that it is looked at was removed meanwhile; what is no directory holds no chunks.
bool passed_over(const Status& status) {
  return status.code == ENOENT || status.code == ENOTDIR || status.code == ELOOP;
}

class Scanner {
 public:
  explicit Scanner(const FilesScan& scan) : scan_(scan) {}

  bool run(const fs::Directory& directory) {
    Fd root;
    std::vector<std::string> firsts;
    if (!open_and_read(directory.at(), ".", root, firsts)) return false;
    for (const std::string& first : firsts) {
      if (scan_.stop.load(std::memory_order_relaxed)) return false;
      if (first.ends_with(kTemporarySuffix)) scan_.on_temporary(first);
      if (is_first_level(first)) whole_ = scan_first(root, first) && whole_;
    }
    return whole_ && !scan_.stop.load(std::memory_order_relaxed);
  }

 private:
  bool open_and_read(int at, const char* name, Fd& directory, std::vector<std::string>& names) {
    names.clear();
    if (const Status opened = fs::open_directory(at, name, directory); !opened.ok())
      return passed_over(opened);
    const Status read = listing_.read(directory, names);
    return read.ok() || passed_over(read);
  }

  bool scan_first(const Fd& root, const std::string& first) {
    Fd directory;
    std::vector<std::string> leaves;
    bool whole = open_and_read(root.get(), first.c_str(), directory, leaves);
    for (const std::string& leaf : leaves) {
      if (scan_.stop.load(std::memory_order_relaxed)) return false;
      if (is_leaf(leaf)) whole = scan_leaf(directory, first, leaf) && whole;
    }
    return whole;
  }

  bool scan_leaf(const Fd& parent, const std::string& first, const std::string& leaf) {
    Fd directory;
    if (!open_and_read(parent.get(), leaf.c_str(), directory, names_)) return false;
    bool whole = true;
    if (names_.empty()) scan_.on_empty(first + '/' + leaf + '/');
    for (const std::string& name : names_) {
      if (name.ends_with(kTemporarySuffix)) scan_.on_temporary(first + '/' + leaf + '/' + name);
      const std::string key = key_of(first, leaf, name);
      if (key.empty()) continue;
      fs::Entry entry;
      if (!fs::inspect(directory.get(), name, entry).ok()) whole = false;
      if (entry.kind == fs::Kind::kRegular && entry.size_bytes == scan_.chunk_size_bytes)
        scan_.on_chunk(key, entry.modified_ns / 1'000'000'000U);
    }
    return whole;
  }

  const FilesScan& scan_;
  fs::Listing listing_;
  std::vector<std::string> names_;
  bool whole_ = true;
};

}  // namespace

bool is_leaf(std::string_view name) {
  const std::size_t mark = name.find("_g");
  return mark != std::string_view::npos && mark <= 2 && (mark == 0 || is_hex(name.substr(0, mark)));
}

bool scan_files(const fs::Directory& directory, const FilesScan& scan) {
  return Scanner(scan).run(directory);
}

bool is_chunk_path(const std::string& first, const std::string& leaf, const std::string& name) {
  return is_first_level(first) && is_leaf(leaf) && !key_of(first, leaf, name).empty();
}

std::uint64_t first_level_digest(const fs::Directory& directory) {
  fs::Listing listing;
  Fd root;
  std::vector<std::string> names;
  if (!fs::open_directory(directory.at(), ".", root).ok() || !listing.read(root, names).ok()) return 0;
  std::uint64_t digest = 0;
  for (const std::string& name : names) {
    fs::Entry entry;
    if (!is_first_level(name) || !fs::inspect(root.get(), name, entry).ok()) continue;
    std::uint64_t one = entry.modified_ns * 0x9e3779b97f4a7c15U;
    for (const char letter : name) one = (one ^ static_cast<unsigned char>(letter)) * 0x100000001b3U;
    // A sum, since names come in no order.
    digest += one ^ one >> 29;
  }
  return digest;
}

}  // namespace kvfs::layouts
