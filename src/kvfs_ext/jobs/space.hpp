// What this process may still store: leases on the room that all processes share. docs/capacity.md has the
// rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/status.hpp"
#include "fs/directory.hpp"
#include "fs/space_file.hpp"

namespace kvfs::jobs {

// 0 is no limit.
struct SpaceLimits {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t min_free_bytes = 0;
  [[nodiscard]] bool any() const { return capacity_bytes > 0 || min_free_bytes > 0; }
};

struct SpaceStats {
  std::uint64_t used_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t counted = 0;
  std::uint64_t sheds = 0;
};

// Thread-safe once it is open. Without limits it lets everything through and costs nothing.
class Space {
 public:
  Space(const SpaceLimits& limits, std::size_t chunk_size_bytes);

  // Join those who share `root`, made if it is missing. Blocks.
  Status open(const std::string& root, const fs::Modes& modes);
  // Leave them: what was stored here belongs to nobody then, and what was leased goes back. Once nobody
  // stores or removes any more.
  void close();
  [[nodiscard]] bool enabled() const { return limits_.any(); }
  [[nodiscard]] const fs::Directory& root() const { return root_; }
  // To be called when there is something to evict, from any thread.
  void on_scarce(std::function<void()> call) { on_scarce_ = std::move(call); }

  // Before a chunk is written: whether there is room for it. Then either stored() or cancelled().
  [[nodiscard]] bool reserve();
  void stored();
  void cancelled();
  // So many chunks that were counted are gone, or so many of the directories that they lay in; where another
  // chunk needs one, that counts for it.
  void removed(std::size_t chunks);
  void pruned(std::size_t directories);

  // Whether all that lies below the root has been counted.
  [[nodiscard]] bool counted();
  // What to remember while all of it is counted, and then how much it is.
  struct CountBegun {
    std::int64_t stored = 0;
    std::int64_t unowned = 0;
  };
  [[nodiscard]] CountBegun begin_count();
  void set_counted(std::uint64_t bytes, const CountBegun& begun);
  // Bytes that are gone and belonged to no process.
  void removed_unowned(std::uint64_t bytes);

  // Learn what the others hold, and give back what this process has leased and does not need.
  void refresh();
  // How many bytes have to be evicted now, 0 if none; as of the last refresh().
  [[nodiscard]] std::uint64_t excess_bytes();
  [[nodiscard]] std::uint64_t chunk_cost_bytes() const { return static_cast<std::uint64_t>(cost_); }
  [[nodiscard]] SpaceStats stats();

 private:
  // With the mutex held.
  [[nodiscard]] bool lease();
  [[nodiscard]] bool fits(const fs::SpaceTable& table, const fs::Room& room, std::int64_t more) const;
  // How many bytes there are too many, if so many margins are to be left.
  [[nodiscard]] std::uint64_t beyond(std::int64_t margins) const;
  // What evicting makes free beyond what has to be: a twentieth of the capacity.
  [[nodiscard]] std::int64_t margin() const;

  const SpaceLimits limits_;
  const std::int64_t cost_;   // of one chunk
  const std::int64_t lease_;  // taken at once
  fs::Directory root_;
  fs::SpaceFile file_;
  std::function<void()> on_scarce_;

  std::mutex mutex_;           // guards what follows
  std::int64_t stored_ = 0;    // by this process, less what it has removed
  std::int64_t reserved_ = 0;  // being stored
  std::int64_t claim_ = 0;     // what this process's slot says: at least both
  // As of the last look.
  std::int64_t total_ = 0;
  fs::Room room_;
  bool counted_ = false;
  // The last lease was refused, so that the next would be, too, until refresh() sees room.
  bool denied_ = false;
  std::uint64_t sheds_ = 0;
};

}  // namespace kvfs::jobs
