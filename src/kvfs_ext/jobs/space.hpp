// What this process may still store: leases on the room that all processes share. docs/capacity.md has the
// rules.
#pragma once

#include <atomic>
#include <chrono>
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

// What was promised when a count began: by this process, and to none.
struct CountStart {
  std::int64_t stored = 0;
  std::int64_t unowned = 0;
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
  [[nodiscard]] bool enabled() const { return limits_.any(); }
  [[nodiscard]] const fs::Directory& root() const { return root_; }
  // To be called when there is something to evict, from any thread.
  void on_scarce(std::function<void()> call) { on_scarce_ = std::move(call); }

  // Before a chunk is written: whether there is room for it. Then either stored() or cancelled().
  [[nodiscard]] bool reserve();
  void stored();
  void cancelled();
  // The chunk needed a directory; part of what was reserved.
  void made_directory();
  // Files or directories are gone that counted as so much, whoever had made them.
  void removed(std::uint64_t bytes);

  // Whether all that lies below the root has still to be counted; or again, because more is promised than
  // there may be, which is too much, and nobody else is here.
  [[nodiscard]] bool must_count();
  // A count begins; all of it was counted to be so much, and what this process had stored before belongs to
  // none then. Nothing may be removed() in between.
  [[nodiscard]] CountStart begin_count();
  void set_counted(std::uint64_t bytes, const CountStart& start);
  // Bytes that are gone and belonged to no process.
  void removed_unowned(std::uint64_t bytes);

  // Learn what the others hold, and give back what this process has leased and does not need.
  void refresh();
  // How many bytes have to be evicted now, 0 if none; as of the last refresh().
  [[nodiscard]] std::uint64_t excess_bytes();
  // The same while evicting, which begins later than it ends.
  [[nodiscard]] std::uint64_t remaining_excess_bytes();
  // What a chunk costs that has a directory for itself.
  [[nodiscard]] std::uint64_t chunk_cost_bytes() const { return static_cast<std::uint64_t>(cost_); }
  // How many chunks to evict before the others learn of the room: who is killed in between leaves it
  // promised.
  [[nodiscard]] std::size_t chunks_per_lease() const { return static_cast<std::size_t>(lease_ / cost_); }
  // Never waits.
  [[nodiscard]] SpaceStats stats() const;
  // Give back what was leased and leave, with everything ended that could store. Blocks.
  void close();

 private:
  // With the mutex held, or before any thread has this.
  Status join();
  Status enter();
  Status look_at_room();
  [[nodiscard]] bool lease();
  // What the table says now.
  void note(const fs::SpaceTable& table);
  [[nodiscard]] bool fits(const fs::SpaceTable& table, const fs::Room& room, std::int64_t more) const;
  // How many bytes there are too many, if so many margins are to be left.
  [[nodiscard]] std::uint64_t beyond(std::int64_t margins) const;
  // What evicting makes free beyond what has to be: a twentieth of the capacity, and at least a chunk, or a
  // store would be refused that nothing makes room for.
  [[nodiscard]] std::int64_t margin() const;

  const SpaceLimits limits_;
  const std::int64_t cost_;   // of one chunk
  const std::int64_t lease_;  // taken at once
  fs::Directory root_;
  fs::SpaceFile file_;
  std::function<void()> on_scarce_;

  std::mutex mutex_;  // guards what follows
  // Whether this process has a slot. Where it could get none it stores nothing.
  bool joined_ = false;
  // Nor could it, or what was counted, be written: the file system is full.
  bool no_room_for_table_ = false;
  std::int64_t stored_ = 0;    // by this process, less what it has removed
  std::int64_t reserved_ = 0;  // being stored
  std::int64_t claim_ = 0;     // what this process's slot says: at least both
  fs::Room room_;              // as of the last look
  // What stands there was counted, a process has ended since, and there is no other.
  bool may_recount_ = false;
  std::chrono::steady_clock::time_point count_began_{};
  std::chrono::steady_clock::time_point recount_at_{};
  // The last lease was refused, so that the next would be, too, until refresh() sees room.
  bool denied_ = false;

  // As of the last look, too. Changed with the mutex held and read without it: a disk that does not answer
  // holds it as long as it likes, and whoever asks for stats must not wait for that.
  std::atomic<std::int64_t> total_{0};
  std::atomic<std::uint64_t> free_bytes_{0};
  std::atomic<bool> counted_{false};
  std::atomic<std::uint64_t> sheds_{0};
};

}  // namespace kvfs::jobs
