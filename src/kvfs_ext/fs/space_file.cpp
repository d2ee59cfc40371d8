// The file that processes share, and its locks.
#include "fs/space_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>

namespace kvfs::fs {

namespace {

constexpr const char* kName = "kvfs.space";
constexpr char kMagic[] = "KVFSSPC1";
// Locks of slots lie far behind the bytes.
constexpr off_t kLockOffset = off_t{1} << 30;
// All numbers of a table together are no more.
constexpr std::int64_t kBytesMax = std::int64_t{1} << 60;
constexpr auto kPatience = std::chrono::milliseconds(100);

struct Image {
  char magic[8] = {};
  std::uint64_t counted = 0;  // 1, or 2 when stale
  std::int64_t unowned = 0;
  std::array<std::int64_t, SpaceTable::kSlots> slots{};
};
static_assert(sizeof(Image) == 24 + 8 * SpaceTable::kSlots);

struct flock lock_of(std::size_t first, std::size_t count, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = kLockOffset + static_cast<off_t>(first);
  lock.l_len = static_cast<off_t>(count);
  return lock;
}

// Whether the numbers can be added up, whoever wrote them, and may be true.
bool holds_together(const Image& image) {
  if (std::memcmp(image.magic, kMagic, sizeof image.magic) != 0 || image.counted > 2) return false;
  if (image.unowned < -kBytesMax || image.unowned > kBytesMax) return false;
  std::int64_t magnitude = std::abs(image.unowned);
  std::int64_t total = image.unowned;
  for (const std::int64_t slot : image.slots) {
    if (slot < -kBytesMax || slot > kBytesMax) return false;
    total += slot;
    magnitude += std::abs(slot);
    if (magnitude > kBytesMax) return false;
  }
  return image.counted == 0 || total >= 0;
}

}  // namespace

std::int64_t SpaceTable::total() const { return std::accumulate(slots.begin(), slots.end(), unowned); }

// The file as a whole, for the length of a change. flock() does on a descriptor for reading, with which the
// file system can still become read-only.
class SpaceFile::Turn {
 public:
  explicit Turn(const Fd& file) : file_(file) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      status_ = Status::failure(errno == EWOULDBLOCK ? EBUSY : errno, "lock kvfs.space");
      if (status_.code != EBUSY || std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    status_ = Status::success();
  }
  ~Turn() {
    if (status_.ok()) (void)::flock(file_.get(), LOCK_UN);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  const Fd& file_;
  Status status_;
};

Status SpaceFile::open(const Directory& directory, bool& alone) {
  directory_ = &directory;
  return join(alone);
}

Status SpaceFile::join(bool& alone) {
  const Directory& directory = *directory_;
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = Fd(::openat(directory.at(), kName, kFlags | O_CREAT | O_EXCL, directory.modes().file));
  if (file_.valid()) (void)give_mode(file_, directory.modes());
  if (!file_.valid() && errno == EEXIST) file_ = Fd(::openat(directory.at(), kName, kFlags));
  if (!file_.valid()) return Status::from_errno("open kvfs.space");
  const Turn turn(file_);
  if (!turn.status().ok()) return turn.status();
  struct flock others = lock_of(0, SpaceTable::kSlots, F_WRLCK);
  if (::fcntl(file_.get(), F_OFD_GETLK, &others) != 0) return Status::from_errno("lock kvfs.space");
  alone = others.l_type == F_UNLCK;
  for (slot_ = 0; slot_ < SpaceTable::kSlots && is_held(slot_);) ++slot_;
  if (slot_ == SpaceTable::kSlots) return Status::failure(ENOLCK, "lock kvfs.space");
  struct flock mine = lock_of(slot_, 1, F_RDLCK);
  return ::fcntl(file_.get(), F_OFD_SETLK, &mine) == 0 ? Status::success()
                                                       : Status::from_errno("lock kvfs.space");
}

Status SpaceFile::update(const std::function<void(SpaceTable&)>& change) {
  const std::lock_guard lock(mutex_);
  struct stat found;
  bool alone = false;
  // Somebody has removed it. Whoever comes makes a new one, and all has to be counted again.
  if (::fstat(file_.get(), &found) == 0 && found.st_nlink == 0) {
    if (const Status joined = join(alone); !joined.ok()) return joined;
  }
  const Turn turn(file_);
  if (!turn.status().ok()) return turn.status();
  SpaceTable table;
  table.mine = slot_;
  bool whole = false;
  if (const Status got = read(table, whole); !got.ok()) return got;
  const SpaceTable before = table;
  for (std::size_t slot = 0; slot < SpaceTable::kSlots; ++slot) {
    if (slot == slot_ || table.slots[slot] == 0 || is_held(slot)) continue;
    table.unowned += std::exchange(table.slots[slot], 0);
    table.stale = true;
  }
  change(table);
  return whole && table == before ? Status::success() : write(table);
}

bool SpaceFile::alone() const {
  struct flock others = lock_of(0, SpaceTable::kSlots, F_WRLCK);
  return ::fcntl(file_.get(), F_OFD_GETLK, &others) == 0 && others.l_type == F_UNLCK;
}

// By hand: a forked child has the same open file description and would keep its lock.
void SpaceFile::close() {
  const std::lock_guard lock(mutex_);
  if (!file_.valid()) return;
  struct flock mine = lock_of(slot_, 1, F_UNLCK);
  (void)::fcntl(file_.get(), F_OFD_SETLK, &mine);
  file_ = Fd();
}

bool SpaceFile::is_held(std::size_t slot) const {
  struct flock lock = lock_of(slot, 1, F_WRLCK);
  // What cannot be told may be. One's own locks do not show.
  return ::fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

Status SpaceFile::read(SpaceTable& table, bool& whole) const {
  Image image;
  ssize_t got;
  do {
    got = ::pread(file_.get(), &image, sizeof image, 0);
  } while (got < 0 && errno == EINTR);
  // What could not be read must not be written anew: that would forget what the others hold.
  if (got < 0) return Status::from_errno("read kvfs.space");
  whole = got == ssize_t{sizeof image} && holds_together(image);
  if (!whole) return Status::success();
  table.counted = image.counted > 0;
  table.stale = image.counted == 2;
  table.unowned = image.unowned;
  table.slots = image.slots;
  return Status::success();
}

Status SpaceFile::write(const SpaceTable& table) const {
  Image image;
  std::memcpy(image.magic, kMagic, sizeof image.magic);
  if (table.counted) image.counted = table.stale ? 2 : 1;
  image.unowned = table.unowned;
  image.slots = table.slots;
  const Fd file(::openat(directory_->at(), kName, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file.valid()) return Status::from_errno("open kvfs.space");
  ssize_t put;
  do {
    put = ::pwrite(file.get(), &image, sizeof image, 0);
  } while (put < 0 && errno == EINTR);
  if (put < 0) return Status::from_errno("write kvfs.space");
  return put == ssize_t{sizeof image} ? Status::success() : Status::failure(EIO, "write kvfs.space");
}

Status room_of(const Directory& directory, Room& room) {
  struct statvfs found;
  if (::fstatvfs(directory.at(), &found) != 0) return Status::from_errno("statvfs");
  room.free_bytes = std::uint64_t{found.f_bavail} * found.f_frsize;
  room.used_bytes = std::uint64_t{found.f_blocks - found.f_bfree} * found.f_frsize;
  return Status::success();
}

}  // namespace kvfs::fs
