// What the processes of one host have promised away of one directory's room: a small file that they share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

#include "base/fd.hpp"
#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::fs {

// What stands in the file, in bytes.
struct SpaceTable {
  static constexpr std::size_t kSlots = 1024;
  bool counted = false;  // whether `unowned` has been counted
  // More may be promised than there is: a process has ended since then.
  bool stale = false;
  // Of no process that lives; negative where such ones have removed what others had stored.
  std::int64_t unowned = 0;
  std::array<std::int64_t, kSlots> slots{};
  std::size_t mine = 0;  // this process's slot

  [[nodiscard]] std::int64_t total() const;
  [[nodiscard]] bool operator==(const SpaceTable&) const = default;
};

// A slot of the file kvfs.space in a directory, held as long as this lives: the kernel frees it when the
// process dies. Thread-safe once it is open. Each call takes microseconds, and waits for other processes'
// calls; for 0.1 s at most, then it is EBUSY. docs/capacity.md has the rules.
class SpaceFile {
 public:
  // Take a slot. `alone`: nobody else holds one. `directory` outlives this. ENOLCK where all are taken.
  Status open(const Directory& directory, bool& alone);

  // Read the table, let `change` change it, write it. The slots of the dead have been emptied into `unowned`.
  // What does not hold together is an empty table that has not been counted.
  Status update(const std::function<void(SpaceTable&)>& change);

  // Nobody else holds a slot. Only in an update's `change`.
  [[nodiscard]] bool alone() const;

  // Give the slot up: what it says belongs to nobody then.
  void close();

 private:
  class Turn;
  Status join(bool& alone);
  [[nodiscard]] bool is_held(std::size_t slot) const;
  // `whole`: what is in the file holds together.
  Status read(SpaceTable& table, bool& whole) const;
  [[nodiscard]] Status write(const SpaceTable& table) const;

  const Directory* directory_ = nullptr;
  std::mutex mutex_;
  Fd file_;
  std::size_t slot_ = 0;
};

// Bytes that a file system has left for users without privileges, and bytes that are taken of it.
struct Room {
  std::uint64_t free_bytes = 0;
  std::uint64_t used_bytes = 0;
};
Status room_of(const Directory& directory, Room& room);

}  // namespace kvfs::fs
