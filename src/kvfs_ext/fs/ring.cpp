// An io_uring for reads into one memory and writes from it.
#include "fs/ring.hpp"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace kvfs::fs {

namespace {

// The kernel takes at most 1 GiB a registered buffer and this many of them.
constexpr std::size_t kPieceSizeMax = std::size_t{1} << 30;
constexpr std::size_t kPiecesMax = std::size_t{1} << 14;
// A registered or named length is 32 bits wide.
constexpr std::size_t kTransferSizeMax = std::size_t{1} << 30;

// Since Linux 6.12, younger than the headers that we build with.
constexpr unsigned kRegisterCloneBuffers = 30;
struct CloneBuffers {
  std::uint32_t src_fd;
  std::uint32_t flags;
  std::uint32_t src_off;
  std::uint32_t dst_off;
  std::uint32_t nr;
  std::uint32_t pad[3];
};

int ring_setup(unsigned entries, io_uring_params* parameters) {
  return static_cast<int>(::syscall(SYS_io_uring_setup, entries, parameters));
}

int ring_register(int fd, unsigned opcode, const void* argument, unsigned count) {
  return static_cast<int>(::syscall(SYS_io_uring_register, fd, opcode, argument, count));
}

std::uint32_t* at(const Mapping& mapping, std::uint32_t offset) {
  return reinterpret_cast<std::uint32_t*>(mapping.data() + offset);
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Status Ring::create(unsigned depth, const RingMemory& memory, const Ring* donor, Ring& ring) {
  io_uring_params parameters{};
  // One thread submits and reaps, and completions wait until it asks: no interrupts in between. A ring
  // that belongs to one thread cannot be another thread's donor.
  if (donor != nullptr) parameters.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  int number = ring_setup(depth, &parameters);
  if (number < 0 && errno == EINVAL) {
    // Kernels before 6.1.
    parameters = {};
    number = ring_setup(depth, &parameters);
  }
  if (number < 0) return Status::from_errno("io_uring_setup");
  ring = Ring();
  ring.fd_ = Fd(number);
  ring.depth_ = depth;
  ring.memory_ = memory;
  if (const Status mapped = ring.map(&parameters); !mapped.ok()) return mapped;
  ring.register_buffers(donor);
  return Status::success();
}

Status Ring::map(const void* parameters_address) {
  const auto& parameters = *static_cast<const io_uring_params*>(parameters_address);
  // Kernels from 5.4 map both queues at once; older ones have no business here.
  if ((parameters.features & IORING_FEAT_SINGLE_MMAP) == 0) return Status::failure(ENOSYS, "io_uring_setup");
  const std::size_t rings_size =
      std::max(parameters.sq_off.array + parameters.sq_entries * sizeof(std::uint32_t),
               parameters.cq_off.cqes + parameters.cq_entries * sizeof(io_uring_cqe));
  void* rings = ::mmap(nullptr, rings_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(),
                       static_cast<off_t>(IORING_OFF_SQ_RING));
  if (rings == MAP_FAILED) return Status::from_errno("mmap");
  rings_ = Mapping(rings, rings_size);
  const std::size_t entries_size = parameters.sq_entries * sizeof(io_uring_sqe);
  void* entries = ::mmap(nullptr, entries_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(),
                         static_cast<off_t>(IORING_OFF_SQES));
  if (entries == MAP_FAILED) return Status::from_errno("mmap");
  entries_ = Mapping(entries, entries_size);

  sq_tail_ = at(rings_, parameters.sq_off.tail);
  sq_array_ = at(rings_, parameters.sq_off.array);
  sq_mask_ = *at(rings_, parameters.sq_off.ring_mask);
  cq_head_ = at(rings_, parameters.cq_off.head);
  cq_tail_ = at(rings_, parameters.cq_off.tail);
  cq_mask_ = *at(rings_, parameters.cq_off.ring_mask);
  cqes_ = reinterpret_cast<const io_uring_cqe*>(rings_.data() + parameters.cq_off.cqes);
  return Status::success();
}

void Ring::register_buffers(const Ring* donor) {
  const std::size_t row = memory_.row_size_bytes;
  if (row == 0 || row > kPieceSizeMax) return;
  piece_size_bytes_ = kPieceSizeMax / row * row;
  const std::size_t pieces = (memory_.bytes.size() + piece_size_bytes_ - 1) / piece_size_bytes_;
  if (pieces > kPiecesMax) return;
  if (donor != nullptr) {
    CloneBuffers clone{};
    clone.src_fd = static_cast<std::uint32_t>(donor->fd_.get());
    if (donor->has_registered_buffers() && ring_register(fd_.get(), kRegisterCloneBuffers, &clone, 1) == 0) {
      pieces_ = donor->pieces_;
    }
    // Pinning the same memory once a thread would cost more than plain addresses do.
    return;
  }
  std::vector<iovec> vectors;
  vectors.reserve(pieces);
  for (std::size_t start = 0; start < memory_.bytes.size(); start += piece_size_bytes_) {
    const std::span<std::byte> piece =
        memory_.bytes.subspan(start, std::min(piece_size_bytes_, memory_.bytes.size() - start));
    vectors.push_back({piece.data(), piece.size()});
  }
  const auto count = static_cast<unsigned>(vectors.size());
  if (ring_register(fd_.get(), IORING_REGISTER_BUFFERS, vectors.data(), count) == 0) pieces_ = count;
}

bool Ring::queue(Direction direction, int fd, std::span<std::byte> bytes, std::uint64_t offset,
                 std::uint64_t tag) {
  if (in_flight_ + queued_ >= depth_) return false;
  // Only this thread writes the tail.
  const std::uint32_t tail = *sq_tail_;
  const std::uint32_t index = tail & sq_mask_;
  auto& entry = reinterpret_cast<io_uring_sqe*>(entries_.data())[index];
  std::memset(&entry, 0, sizeof entry);
  const bool fixed = has_registered_buffers();
  entry.opcode = direction == Direction::kRead ? (fixed ? IORING_OP_READ_FIXED : IORING_OP_READ)
                                               : (fixed ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE);
  entry.fd = fd;
  entry.addr = reinterpret_cast<std::uint64_t>(bytes.data());
  entry.len = static_cast<std::uint32_t>(std::min(bytes.size(), kTransferSizeMax));
  entry.off = offset;
  entry.user_data = tag;
  if (fixed) {
    const auto start = static_cast<std::size_t>(bytes.data() - memory_.bytes.data());
    entry.buf_index = static_cast<std::uint16_t>(start / piece_size_bytes_);
  }
  sq_array_[index] = index;
  // The kernel must see the entry before the tail that covers it.
  std::atomic_ref(*sq_tail_).store(tail + 1, std::memory_order_release);
  ++queued_;
  return true;
}

Status Ring::submit(unsigned at_least) {
  const unsigned wanted = std::min(at_least, in_flight_ + queued_);
  while (queued_ > 0 || wanted > 0) {
    const long submitted =
        ::syscall(SYS_io_uring_enter, fd_.get(), queued_, wanted, IORING_ENTER_GETEVENTS, nullptr, 0);
    if (submitted >= 0) {
      queued_ -= static_cast<unsigned>(submitted);
      in_flight_ += static_cast<unsigned>(submitted);
      if (queued_ == 0) return Status::success();
    } else if (errno != EINTR) {
      return Status::from_errno("io_uring_enter");
    }
  }
  return Status::success();
}

void Ring::drop_queued() {
  // The kernel reads the tail in io_uring_enter alone, so taking it back is safe.
  std::atomic_ref(*sq_tail_).store(*sq_tail_ - queued_, std::memory_order_release);
  queued_ = 0;
}

bool Ring::take(Completion& completion) {
  const std::uint32_t head = *cq_head_;
  if (head == std::atomic_ref(*cq_tail_).load(std::memory_order_acquire)) return false;
  const io_uring_cqe& entry = cqes_[head & cq_mask_];
  completion = {entry.user_data, entry.res};
  std::atomic_ref(*cq_head_).store(head + 1, std::memory_order_release);
  --in_flight_;
  return true;
}

}  // namespace kvfs::fs
