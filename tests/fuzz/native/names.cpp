// Fuzz target: names in a namespace's directories, and the paths of keys.
#include <optional>
#include <string>
#include <string_view>

#include "fixture.hpp"
#include "layouts/files.hpp"
#include "layouts/files_scan.hpp"

namespace {

using kvfs::testing::require;

struct Path {
  std::string first;
  std::string leaf;
  std::string name;
};

// `path` in three names that a directory could have.
std::optional<Path> split(std::string_view path) {
  const std::size_t one = path.find('/');
  const std::size_t two = one == std::string_view::npos ? one : path.find('/', one + 1);
  if (two == std::string_view::npos) return std::nullopt;
  Path parts{std::string(path.substr(0, one)), std::string(path.substr(one + 1, two - one - 1)),
             std::string(path.substr(two + 1))};
  for (const std::string* part : {&parts.first, &parts.leaf, &parts.name}) {
    if (part->empty() || *part == "." || *part == ".." ||
        part->find_first_of(std::string_view("/\0", 2)) != std::string::npos)
      return std::nullopt;
  }
  return parts;
}

// The key whose path this would be, read back in another way than the scan does it.
std::string key_in(const Path& path) {
  std::string key;
  for (std::size_t at = 0; at + 1 < path.name.size() && path.name[at] != '.'; at += 2)
    key += static_cast<char>(std::strtoul(path.name.substr(at, 2).c_str(), nullptr, 16));
  const unsigned long group = std::strtoul(path.leaf.c_str() + path.leaf.find("_g") + 2, nullptr, 10);
  for (int shift = 24; shift >= 0; shift -= 8) key += static_cast<char>(group >> shift & 0xff);
  return key;
}

void check_key(const std::string& key) {
  const std::string path = kvfs::layouts::chunk_path(key);
  const std::optional<Path> parts = split(path);
  require(parts.has_value(), "the path of a key is two directories and a file");
  require(kvfs::layouts::is_chunk_path(parts->first, parts->leaf, parts->name),
          "the path of a key is the path of a chunk");
  require(key_in(*parts) == key, "the paths of two keys differ");
  const std::string temporary = kvfs::layouts::temporary_path(path);
  require(kvfs::layouts::writer_of(temporary) == kvfs::layouts::writer_number(),
          "a temporary names its writer");
  require(
      !kvfs::layouts::is_chunk_path(parts->first, parts->leaf, temporary.substr(temporary.rfind('/') + 1)),
      "a temporary is no chunk");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (size >= kvfs::layouts::kKeySizeMin && size <= kvfs::layouts::kKeySizeMax) check_key(text);
  if (kvfs::layouts::writer_of(text)) require(text.ends_with(".tmp"), "only temporaries have a writer");
  const std::optional<Path> path = split(text);
  if (!path || !kvfs::layouts::is_chunk_path(path->first, path->leaf, path->name)) return 0;
  const std::string key = key_in(*path);
  require(key.size() >= kvfs::layouts::kKeySizeMin && key.size() <= kvfs::layouts::kKeySizeMax,
          "a key has an allowed length");
  require(kvfs::layouts::chunk_path(key) == text, "what counts as a chunk's path is its key's");
  return 0;
}
