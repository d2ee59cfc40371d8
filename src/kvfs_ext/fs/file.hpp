// The system calls that kvfs makes on files, each with its loops and fallbacks. No other room has any.
//
// A path is relative to the directory `at`, a descriptor or AT_FDCWD. Below a descriptor open and create
// follow no symbolic link in any component, and fail with ELOOP.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/fd.hpp"
#include "base/status.hpp"

namespace kvfs::fs {

// Of what is made. KV bytes are users' prompts: unless told otherwise nobody but the owner reads them.
struct Modes {
  mode_t file = 0600;
  mode_t directory = 0700;
  // The process's umask takes bits from `file`, so that each new file has to be given them.
  bool umask_interferes = false;
};

// Whether operations on one file system still try O_DIRECT. Shared by all threads of an engine.
//
// The decision falls per operation: one that cannot be direct (a misaligned buffer, EINVAL from open,
// read or write) goes on buffered. Only an operation that was aligned for every device and was refused
// all the same turns O_DIRECT off for good, because the next one would be refused too.
class DirectPolicy {
 public:
  explicit DirectPolicy(bool enabled) : enabled_(enabled) {}

  // Whether to try O_DIRECT for these bytes; counts the ones that alignment rules out.
  [[nodiscard]] bool wants(std::span<const std::byte> bytes);
  // Record that an operation on these bytes was refused with EINVAL.
  void refused(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t fallbacks() const { return fallbacks_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> enabled_;
  std::atomic<std::uint64_t> fallbacks_{0};
};

// An open file and whether transfers on it are direct at the moment.
struct File {
  Fd fd;
  bool direct = false;
  // How often the directory that it lies in was made for it; more than once if others removed it again.
  unsigned parents_made = 0;
};

// What lies at a path; links are not followed.
enum class Kind { kAbsent, kRegular, kDirectory, kLink, kOther };
struct Entry {
  Kind kind = Kind::kAbsent;
  std::uint64_t size_bytes = 0;
  dev_t device = 0;
  ino_t inode = 0;
  std::uint64_t modified_ns = 0;
  std::uint64_t disk_bytes = 0;  // that it takes
};

// Blocking, any thread. ENOENT is no failure here: the entry is kAbsent.
Status inspect(int at, const std::string& path, Entry& entry);
Status inspect(const Fd& fd, Entry& entry);

// The same for a regular file, but for one that is behind a link: that is a kLink.
Status inspect_beneath(int at, const std::string& path, Entry& entry);

// Whether a new file has its name from the start or none until it is linked.
enum class Naming { kNamed, kNameless };

// Create a file at `path`, or one without a name beside it, for writing `bytes`, with the missing parent
// directories. EEXIST when there is one at `path` already; nothing of another writer is touched.
Status create_exclusive(int at, const std::string& path, Naming naming, const Modes& modes,
                        std::span<const std::byte> bytes, DirectPolicy& direct, File& file);

// Give a file that was just made its mode, if the umask has taken from it.
Status give_mode(const Fd& file, const Modes& modes);

// Open `path` for reading into `bytes`. A link at the last component fails with ELOOP; a FIFO does
// not block.
Status open_existing(int at, const std::string& path, std::span<std::byte> bytes, DirectPolicy& direct,
                     File& file);

// Go on buffered with the descriptor at hand; the bytes that moved already stay valid.
Status leave_direct(File& file);

// Make `path` a directory of `mode`, whatever the umask is, with its missing parents below `at`; one that is
// there is fine. `made`: this call has made it, which is so for one caller alone, and also after a failure.
Status make_directories(int at, const std::string& path, mode_t mode, bool& made);

// Reserve the disk space of `size_bytes`, so that writes neither run out of it nor let the file grow, which
// the kernel does one write after the other. A file system that cannot is left alone.
Status reserve(File& file, std::size_t size_bytes);

// Write all bytes from offset 0. Loops over EINTR and short transfers.
Status write_all(File& file, std::span<const std::byte> bytes, DirectPolicy& direct);

// Read until `bytes` is full or the file ends; `transferred` tells which.
Status read_all(File& file, std::span<std::byte> bytes, DirectPolicy& direct, std::size_t& transferred);

// Move `from` to `to`. Without replacing: EEXIST when `to` is there.
enum class Replace { kNever, kAlways };
Status move(int at, const std::string& from, const std::string& to, Replace replace);

// Remove `path`; what is gone already counts as removed. `was_there` is true for one caller alone, however
// many try.
Status remove(int at, const std::string& path);
Status remove(int at, const std::string& path, bool& was_there);
// Remove a directory if nothing is in it; true for one caller alone.
bool remove_empty_directory(int at, const std::string& path);

}  // namespace kvfs::fs
