// An io_uring for reads into one memory and writes from it, spoken to by the system calls themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/fd.hpp"
#include "base/status.hpp"

struct io_uring_cqe;
struct io_uring_sqe;

namespace kvfs::fs {

// A mapping with one owner. Move-only.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* data, std::size_t size) : data_(data), size_(size) {}
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// The memory that reads go into and writes come from, and the pieces it is registered in: whole rows, so that
// no transfer crosses from one piece into the next.
struct RingMemory {
  std::span<std::byte> bytes;
  std::size_t row_size_bytes = 0;
};

// Not thread-safe, and bound to a thread: create() and everything after it happen on one and the same.
// Destroy it only when nothing is in flight.
class Ring {
 public:
  struct Completion {
    std::uint64_t tag = 0;
    int result = 0;  // bytes, or a negative errno
  };

  // Make a ring for `depth` operations at a time. With a `donor`, a ring of the same memory that was made
  // without one, its registered buffers are cloned (Linux 6.12); without, the memory is pinned and
  // registered, which takes about 50 ms a GiB. Where neither works (memlock limits, older kernels) reads name
  // plain addresses, which costs CPU and nothing else.
  [[nodiscard]] static Status create(unsigned depth, const RingMemory& memory, const Ring* donor, Ring& ring);

  // Queue a transfer between a file and `bytes`, which lie in the ring's memory. False when `depth` are in
  // flight already.
  enum class Direction { kRead, kWrite };
  [[nodiscard]] bool queue(Direction direction, int fd, std::span<std::byte> bytes, std::uint64_t offset,
                           std::uint64_t tag);
  // Hand what is queued to the kernel and wait until `at_least` of all operations have ended. After a
  // failure the last queued() ones were not handed over; drop_queued() forgets them.
  Status submit(unsigned at_least);
  [[nodiscard]] unsigned queued() const { return queued_; }
  void drop_queued();
  // Take one ended operation; false when there is none.
  [[nodiscard]] bool take(Completion& completion);

  [[nodiscard]] unsigned in_flight() const { return in_flight_; }
  [[nodiscard]] bool has_registered_buffers() const { return pieces_ > 0; }

 private:
  [[nodiscard]] Status map(const void* parameters);
  void register_buffers(const Ring* donor);

  Fd fd_;
  Mapping rings_;
  Mapping entries_;
  RingMemory memory_;
  std::size_t piece_size_bytes_ = 0;
  unsigned pieces_ = 0;
  unsigned depth_ = 0;
  unsigned queued_ = 0;
  unsigned in_flight_ = 0;
  // Into rings_, shared with the kernel.
  std::uint32_t* sq_tail_ = nullptr;
  std::uint32_t* sq_array_ = nullptr;
  std::uint32_t sq_mask_ = 0;
  std::uint32_t* cq_head_ = nullptr;
  std::uint32_t* cq_tail_ = nullptr;
  std::uint32_t cq_mask_ = 0;
  const io_uring_cqe* cqes_ = nullptr;
};

}  // namespace kvfs::fs
