// Walking a whole root.
#include "layouts/tree.hpp"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>

#include "base/fd.hpp"
#include "fs/listing.hpp"
#include "fs/ownership.hpp"
#include "layouts/files_scan.hpp"

namespace kvfs::layouts {

namespace {

// Deeper than any model's name; whoever nests directories on purpose must not exhaust the stack.
constexpr std::size_t kDepthMax = 32;
constexpr std::uint64_t kBlockBytes = 4096;

bool opened_and_read(int at, const std::string& name, Fd& directory, std::vector<std::string>& names) {
  fs::Listing listing;
  return fs::open_directory(at, name.c_str(), directory).ok() && listing.read(directory, names).ok();
}

// Never less than evicting gives back, also where blocks are smaller.
std::uint64_t chunk_bytes(const fs::Entry& entry) {
  return std::max<std::uint64_t>(entry.disk_bytes,
                                 (entry.size_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
}

class Counter {
 public:
  Counter(const std::atomic<bool>& stop, dev_t device) : stop_(stop), device_(device) {}

  // `own_bytes` is what the directory itself takes, which has been counted.
  void visit(int at, const std::string& name, std::size_t depth, std::uint64_t own_bytes) {
    Fd directory;
    std::vector<std::string> names;
    std::uint64_t leaves_bytes = 0;
    if (stop_ || depth > kDepthMax || !opened_and_read(at, name, directory, names)) {
      whole_ = false;
      return;
    }
    for (const std::string& each : names) {
      fs::Entry entry;
      if (stop_ || !fs::inspect(directory.get(), each, entry).ok()) whole_ = false;
      if (entry.device != device_) continue;
      const bool is_chunk = entry.kind == fs::Kind::kRegular && each.ends_with(".bin");
      bytes_ += is_chunk ? chunk_bytes(entry) : entry.disk_bytes;
      if (is_chunk) leaves_bytes += kLeafBytes;
      if (entry.kind == fs::Kind::kDirectory) visit(directory.get(), each, depth + 1, entry.disk_bytes);
    }
    // Evicting gives back so much for each chunk, also where one directory has several, or takes less.
    if (leaves_bytes > own_bytes) bytes_ += leaves_bytes - own_bytes;
  }

  [[nodiscard]] bool whole() const { return whole_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

 private:
  const std::atomic<bool>& stop_;
  const dev_t device_;
  std::uint64_t bytes_ = 0;
  bool whole_ = true;
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
        keep({entry.modified_ns, chunk_bytes(entry), path + '/' + leaf + '/' + name});
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
  counter.visit(root.at(), ".", 0, entry.disk_bytes);
  bytes = counter.bytes() + entry.disk_bytes;
  return counter.whole();
}

bool remove_unused(const fs::Directory& root, const UnusedChunk& chunk, Status& status) {
  fs::Entry entry;
  status = fs::inspect_beneath(root.at(), chunk.path, entry);
  if (!status.ok() || entry.kind != fs::Kind::kRegular || entry.modified_ns != chunk.written_ns) return false;
  status = fs::remove(root.at(), chunk.path);
  if (!status.ok()) return false;
  (void)fs::remove_directory(root.at(), chunk.path.substr(0, chunk.path.find_last_of('/')));
  return true;
}

std::vector<UnusedChunk> unused_chunks(const fs::Directory& root, const fs::Entry& own, std::size_t count,
                                       const std::atomic<bool>& stop) {
  Finder finder(own, count, stop);
  finder.visit(root.at(), ".", "", 0);
  return finder.take();
}

}  // namespace kvfs::layouts
