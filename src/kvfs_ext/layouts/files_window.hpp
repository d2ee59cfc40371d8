// Loads and stores of one thread that are under way at the same time, through an io_uring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "fs/ring.hpp"
#include "layouts/files.hpp"

namespace kvfs::layouts {

// Opens, creates and publishes files on the calling thread, as io_uring would hand that to kernel threads,
// and keeps up to `depth` transfers in flight. Not thread-safe; create and use it on one thread. Nothing is
// left in flight when results() has given back everything that was started.
class FilesWindow {
 public:
  struct Result {
    std::uint64_t tag = 0;
    Status status;
    std::size_t moved = 0;
    std::string path;
  };

  // Where the ring cannot be made there is no window, and the caller moves one file at a time.
  static std::unique_ptr<FilesWindow> create(FilesContext& context, unsigned depth,
                                             const fs::RingMemory& memory, const fs::Ring* donor);

  [[nodiscard]] bool full() const { return free_.empty(); }
  [[nodiscard]] bool empty() const { return free_.size() == slots_.size(); }

  // Start a load into `bytes`, or a store of them, which lie in the ring's memory; the window is not full().
  // The tag comes back with the result, as does the path; the chunk's key is looked at until then.
  void start_load(ChunkName chunk, std::span<std::byte> bytes, std::uint64_t tag);
  void start_store(ChunkName chunk, std::span<std::byte> bytes, std::uint64_t tag);
  // Hand what was started to the kernel and take what it has done; with `wait`, at least one transfer ends,
  // unless results are there already or the window is empty.
  void progress(bool wait);
  // Take what ended.
  [[nodiscard]] std::vector<Result> results();

 private:
  struct Slot {
    bool stores = false;
    ChunkName chunk;
    std::span<std::byte> bytes;
    Unpublished target;  // of a load, only its file is used
    std::size_t moved = 0;
    std::uint64_t tag = 0;
  };

  FilesWindow(FilesContext& context, unsigned depth, fs::Ring ring);
  std::size_t take_slot(bool stores, ChunkName chunk, std::span<std::byte> bytes, std::uint64_t tag);
  void transfer_rest(std::size_t slot);
  void advance(std::size_t slot, int result);
  void end(std::size_t slot, const Status& transferred);
  void finish(std::size_t slot, const Status& status);
  void transfer_without_ring();
  // All of one chunk's bytes, on this thread.
  void transfer_plainly(std::size_t index);

  FilesContext& context_;
  fs::Ring ring_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;
  // Slots whose transfer is queued and not handed to the kernel yet, in order.
  std::vector<std::size_t> queued_;
  std::vector<Result> results_;
};

}  // namespace kvfs::layouts
