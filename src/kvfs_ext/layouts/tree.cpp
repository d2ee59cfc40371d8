// Walking a whole root.
#include "layouts/tree.hpp"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "base/fd.hpp"
#include "fs/listing.hpp"
#include "fs/ownership.hpp"
#include "layouts/files.hpp"
#include "layouts/files_scan.hpp"

namespace kvfs::layouts {

namespace {

// Deeper than any model's name; whoever nests directories on purpose must not exhaust the stack.
constexpr std::size_t kDepthMax = 32;

bool opened_and_read(int at, const std::string& name, Fd& directory, std::vector<std::string>& names) {
  fs::Listing listing;
  return fs::open_directory(at, name.c_str(), directory).ok() && listing.read(directory, names).ok();
}

class Counter {
 public:
  Counter(const std::atomic<bool>& stop, dev_t device) : stop_(stop), device_(device) {}

  void visit(int at, const std::string& name, std::size_t depth) {
    Fd directory;
    std::vector<std::string> names;
    if (stop_ || depth > kDepthMax || !opened_and_read(at, name, directory, names)) return;
    for (const std::string& each : names) {
      fs::Entry entry;
      if (!fs::inspect(directory.get(), each, entry).ok() || entry.device != device_) continue;
      bytes_ += std::max(entry.disk_bytes, least_of(name, each, entry));
      if (entry.kind == fs::Kind::kDirectory) visit(directory.get(), each, depth + 1);
    }
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  // What stores have reserved, and evicting gives back.
  static std::uint64_t least_of(const std::string& parent, const std::string& name, const fs::Entry& entry) {
    if (entry.kind == fs::Kind::kDirectory) return is_leaf(name) ? kDirectoryBytes : 0;
    return entry.kind == fs::Kind::kRegular && is_leaf(parent) ? counted_bytes(entry.size_bytes) : 0;
  }

  const std::atomic<bool>& stop_;
  const dev_t device_;
  std::uint64_t bytes_ = 0;
};

// Keeps the oldest chunks, the newest of them on top.
class Finder {
 public:
  Finder(const fs::Entry& own, std::size_t count, const std::atomic<bool>& stop)
      : own_(own), count_(count), stop_(stop) {}

  void visit(int at, const std::string& name, const std::string& path, std::size_t depth) {
    Fd directory;
    std::vector<std::string> names;
    if (stop_ || depth > kDepthMax || !opened_and_read(at, name, directory, names)) return;
    fs::Entry entry;
    if (!fs::inspect(directory, entry).ok() || (entry.device == own_.device && entry.inode == own_.inode))
      return;
    if (entry.device != own_.device) return;
    const bool is_namespace = std::ranges::find(names, "kvfs.lock") != names.end();
    if (is_namespace && !fs::is_unused(directory.get())) return;
    for (const std::string& each : names) {
      if (!fs::inspect(directory.get(), each, entry).ok() || entry.kind != fs::Kind::kDirectory) continue;
      if (is_namespace) {
        collect(directory.get(), each, path + each);
      } else {
        visit(directory.get(), each, path + each + '/', depth + 1);
      }
    }
  }

  std::vector<UnusedChunk> take() {
    std::ranges::sort(found_, {}, &UnusedChunk::written_ns);
    return std::move(found_);
  }

 private:
  void collect(int at, const std::string& first, const std::string& path) {
    Fd directory;
    std::vector<std::string> leaves;
    if (!opened_and_read(at, first, directory, leaves)) return;
    for (const std::string& leaf : leaves) {
      Fd inner;
      std::vector<std::string> names;
      if (stop_ || !opened_and_read(directory.get(), leaf, inner, names)) continue;
      for (const std::string& name : names) {
        fs::Entry entry;
        if (!is_chunk_path(first, leaf, name) || !fs::inspect(inner.get(), name, entry).ok() ||
            entry.kind != fs::Kind::kRegular)
          continue;
        keep({entry.modified_ns, counted_bytes(entry.size_bytes), path + '/' + leaf + '/' + name});
      }
    }
  }

  void keep(UnusedChunk chunk) {
    found_.push_back(std::move(chunk));
    std::ranges::push_heap(found_, {}, &UnusedChunk::written_ns);
    if (found_.size() <= count_) return;
    std::ranges::pop_heap(found_, {}, &UnusedChunk::written_ns);
    found_.pop_back();
  }

  const fs::Entry& own_;
  const std::size_t count_;
  const std::atomic<bool>& stop_;
  std::vector<UnusedChunk> found_;
};

}  // namespace

bool count_tree(const fs::Directory& root, const std::atomic<bool>& stop, std::uint64_t& bytes) {
  fs::Entry entry;
  if (!fs::inspect(root.at(), ".", entry).ok()) return false;
  Counter counter(stop, entry.device);
  counter.visit(root.at(), ".", 0);
  bytes = counter.bytes() + entry.disk_bytes;
  return !stop;
}

std::uint64_t remove_unused(const fs::Directory& root, const UnusedChunk& chunk, Status& status) {
  fs::Entry entry;
  status = fs::inspect_beneath(root.at(), chunk.path, entry);
  if (!status.ok() || entry.kind != fs::Kind::kRegular || entry.modified_ns != chunk.written_ns) return 0;
  bool was_there = false;
  status = fs::remove(root.at(), chunk.path, was_there);
  if (!was_there) return 0;
  const std::string directory = chunk.path.substr(0, chunk.path.find_last_of('/'));
  const bool pruned = fs::remove_empty_directory(root.at(), directory);
  return chunk.counted_bytes + (pruned ? kDirectoryBytes : 0);
}

std::vector<UnusedChunk> unused_chunks(const fs::Directory& root, const fs::Entry& own, std::size_t count,
                                       const std::atomic<bool>& stop) {
  Finder finder(own, count, stop);
  finder.visit(root.at(), ".", "", 0);
  return finder.take();
}

}  // namespace kvfs::layouts
