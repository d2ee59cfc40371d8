// Leases.
#include "jobs/space.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "layouts/files.hpp"

namespace kvfs::jobs {

namespace {

constexpr auto kDirectoryBytes = static_cast<std::int64_t>(layouts::kDirectoryBytes);
constexpr std::int64_t kLeaseBytesMax = std::int64_t{64} << 20;
constexpr std::int64_t kLeasesPerCapacity = 256;
// Evicting begins and ends this far below the capacity, in parts of it.
constexpr std::int64_t kMarginParts = 20;
constexpr std::int64_t kMarginChunks = 64;
constexpr std::int64_t kChunksToJoin = 4;
// Counting a root with many chunks takes seconds: a twentieth of the time at most, and after a failure a
// minute passes.
constexpr int kRecountShare = 20;
constexpr auto kRecountPeriod = std::chrono::minutes(1);

bool says_full(const Status& status) { return status.code == ENOSPC || status.code == EDQUOT; }

// Whether a place in the shared file may be had later: what is there can be loaded meanwhile.
bool may_pass(const Status& status) {
  // Busy: another process has stood still, or the disk has, while it held the file.
  return status.code == EROFS || status.code == EBUSY || says_full(status);
}

std::int64_t cost_of(std::size_t chunk_size_bytes) {
  return static_cast<std::int64_t>(layouts::counted_bytes(chunk_size_bytes)) + kDirectoryBytes;
}

std::int64_t signed_bytes(std::uint64_t bytes) {
  return static_cast<std::int64_t>(std::min(bytes, std::uint64_t{1} << 60));
}

}  // namespace

Space::Space(const SpaceLimits& limits, std::size_t chunk_size_bytes)
    : limits_(limits),
      cost_(cost_of(chunk_size_bytes)),
      lease_(std::max(cost_,
                      limits.capacity_bytes > 0
                          ? std::min(kLeaseBytesMax, signed_bytes(limits.capacity_bytes) / kLeasesPerCapacity)
                          : kLeaseBytesMax)) {}

Status Space::open(const std::string& root, const fs::Modes& modes) {
  if (const Status opened = root_.open(root, modes); !opened.ok()) return opened;
  const Status joined = join();
  // refresh() tries again.
  if (!joined.ok() && !may_pass(joined)) return joined;
  return look_at_room();
}

Status Space::join() {
  const Status status = enter();
  joined_ = status.ok();
  no_room_for_table_ = says_full(status);
  return status;
}

Status Space::enter() {
  bool alone = false;
  if (const Status opened = file_.open(root_, alone); !opened.ok()) return opened;
  return file_.update([&](fs::SpaceTable& table) {
    const std::int64_t left = std::exchange(table.slots[table.mine], 0);
    table.unowned += left;
    table.stale = table.stale || left != 0;
    if (alone) table.counted = false;
    note(table);
  });
}

Status Space::look_at_room() {
  const Status status = fs::room_of(root_, room_);
  free_bytes_ = room_.free_bytes;
  return status;
}

std::int64_t Space::margin() const {
  return limits_.capacity_bytes > 0 ? std::max(cost_, signed_bytes(limits_.capacity_bytes) / kMarginParts)
                                    : kMarginChunks * cost_;
}

bool Space::reserve() {
  if (!enabled()) return true;
  bool scarce = false;
  bool granted = false;
  {
    const std::lock_guard lock(mutex_);
    granted = stored_ + reserved_ + cost_ <= claim_ || (joined_ && !denied_ && lease());
    denied_ = !granted;
    if (granted) reserved_ += cost_;
    if (!granted) ++sheds_;
    scarce = !granted || beyond(1) > 0;
  }
  if (scarce) on_scarce_();
  return granted;
}

bool Space::fits(const fs::SpaceTable& table, const fs::Room& room, std::int64_t more) const {
  // Until all has been counted, no more than all that is taken there can be ours.
  const std::int64_t taken = table.counted
                                 ? table.total()
                                 : signed_bytes(room.used_bytes) + std::max<std::int64_t>(0, table.total());
  if (limits_.capacity_bytes > 0 && taken + more > signed_bytes(limits_.capacity_bytes)) return false;
  const std::int64_t unwritten = claim_ - stored_;
  return limits_.min_free_bytes == 0 ||
         signed_bytes(room.free_bytes) - unwritten - more >= signed_bytes(limits_.min_free_bytes);
}

bool Space::lease() {
  if (!look_at_room().ok()) return false;
  const std::int64_t needed = stored_ + reserved_ + cost_ - claim_;
  std::int64_t taken = 0;
  const Status updated = file_.update([&](fs::SpaceTable& table) {
    table.slots[table.mine] = claim_;
    for (const std::int64_t more : {std::max(needed, lease_), needed}) {
      if (!fits(table, room_, more)) continue;
      taken = more;
      break;
    }
    table.slots[table.mine] += taken;
    note(table);
  });
  if (!updated.ok() || taken == 0) return false;
  claim_ += taken;
  return true;
}

void Space::stored() {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  reserved_ -= cost_;
  stored_ += cost_ - kDirectoryBytes;
}

void Space::made_directory() {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  stored_ += kDirectoryBytes;
}

void Space::cancelled() {
  if (!enabled()) return;
  const std::lock_guard lock(mutex_);
  reserved_ -= cost_;
}

void Space::removed(std::uint64_t bytes) {
  if (!enabled() || bytes == 0) return;
  const std::lock_guard lock(mutex_);
  stored_ -= signed_bytes(bytes);
}

void Space::close() {
  {
    const std::lock_guard lock(mutex_);
    const std::int64_t held = stored_ + reserved_;
    if (joined_) (void)file_.update([&](fs::SpaceTable& table) { table.slots[table.mine] = held; });
    joined_ = false;
  }
  file_.close();
  // So that its file system can be unmounted.
  root_.close();
}

bool Space::must_count() {
  const std::lock_guard lock(mutex_);
  if (limits_.capacity_bytes == 0 || !joined_) return false;
  if (!counted_) return true;
  return may_recount_ && beyond(1) > 0 && std::chrono::steady_clock::now() >= recount_at_;
}

CountStart Space::begin_count() {
  const std::lock_guard lock(mutex_);
  count_began_ = std::chrono::steady_clock::now();
  recount_at_ = count_began_ + kRecountPeriod;
  CountStart start;
  (void)file_.update([&](fs::SpaceTable& table) { start = {stored_, table.unowned}; });
  return start;
}

void Space::set_counted(std::uint64_t bytes, const CountStart& start) {
  const std::lock_guard lock(mutex_);
  bool used = false;
  const Status counted = file_.update([&](fs::SpaceTable& table) {
    // A process that came meanwhile has counted, too, or may have evicted chunks: then this count has not
    // seen them any more, and they are taken from what was there before.
    used = !table.counted || (table.stale && table.unowned == start.unowned && file_.alone());
    if (used) {
      // What was stored meanwhile, also by who is dead by now, may have been seen or not: it counts twice
      // rather than not at all.
      const std::int64_t orphaned = std::max<std::int64_t>(0, table.unowned - start.unowned);
      table.unowned = signed_bytes(bytes) + orphaned;
      table.slots[table.mine] = claim_ - start.stored;
      table.stale = orphaned > 0;
    }
    table.counted = true;
    note(table);
  });
  const auto now = std::chrono::steady_clock::now();
  recount_at_ = now + kRecountShare * (now - count_began_);
  if (counted.ok() && used) {
    stored_ -= start.stored;
    claim_ -= start.stored;
    may_recount_ = false;
  }
  no_room_for_table_ = says_full(counted);
}

void Space::removed_unowned(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  (void)file_.update([&](fs::SpaceTable& table) {
    table.unowned -= signed_bytes(bytes);
    // Before the count it is only a part.
    if (!table.counted) table.unowned = std::max<std::int64_t>(0, table.unowned);
    total_ = table.total();
  });
}

void Space::refresh() {
  const std::lock_guard lock(mutex_);
  (void)look_at_room();
  if (!joined_ && !join().ok()) return;
  const std::int64_t held = stored_ + reserved_;
  std::int64_t wanted = std::min(claim_, held + lease_);
  // A chunk whose directory was removed while it was written has made more than one. As long as others are
  // being stored, what they have made is in their reservations, too.
  if (reserved_ == 0) wanted = std::max(wanted, held);
  const Status updated = file_.update([&](fs::SpaceTable& table) {
    table.slots[table.mine] = wanted;
    may_recount_ = table.counted && table.stale && file_.alone();
    note(table);
  });
  if (updated.ok()) claim_ = wanted;
  denied_ = false;
}

std::uint64_t Space::beyond(std::int64_t margins) const {
  std::int64_t excess = 0;
  if (limits_.capacity_bytes > 0 && counted_)
    excess = total_ - (signed_bytes(limits_.capacity_bytes) - margins * margin());
  if (limits_.min_free_bytes > 0) {
    const std::int64_t kept = signed_bytes(limits_.min_free_bytes) + claim_ - stored_;
    excess =
        std::max(excess, kept + margins * std::max(cost_, margin() / 2) - signed_bytes(room_.free_bytes));
  }
  // Nothing can be counted before there is room for the file that says how much it is.
  if (no_room_for_table_) excess = std::max(excess, kChunksToJoin * cost_);
  return excess > 0 ? static_cast<std::uint64_t>(excess) : 0;
}

std::uint64_t Space::excess_bytes() {
  const std::lock_guard lock(mutex_);
  return beyond(1) > 0 ? beyond(2) : 0;
}

std::uint64_t Space::remaining_excess_bytes() {
  const std::lock_guard lock(mutex_);
  return beyond(2);
}

void Space::note(const fs::SpaceTable& table) {
  // In this order: whoever sees that it was counted sees how much it is.
  total_ = table.total();
  counted_ = table.counted;
}

SpaceStats Space::stats() const {
  const std::uint64_t counted = counted_ ? 1 : 0;
  return {static_cast<std::uint64_t>(std::max<std::int64_t>(0, total_)), free_bytes_, counted, sheds_};
}

}  // namespace kvfs::jobs
