// Loads and stores of one thread that are under way at the same time.
#include "layouts/files_window.hpp"

#include <cerrno>
#include <utility>

namespace kvfs::layouts {

std::unique_ptr<FilesWindow> FilesWindow::create(FilesContext& context, unsigned depth,
                                                 const fs::RingMemory& memory, const fs::Ring* donor) {
  fs::Ring ring;
  if (!fs::Ring::create(depth, memory, donor, ring).ok()) return nullptr;
  return std::unique_ptr<FilesWindow>(new FilesWindow(context, depth, std::move(ring)));
}

FilesWindow::FilesWindow(FilesContext& context, unsigned depth, fs::Ring ring)
    : context_(context), ring_(std::move(ring)), slots_(depth) {
  free_.reserve(depth);
  for (std::size_t slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
}

void FilesWindow::start_load(ChunkName chunk, std::span<std::byte> bytes, std::uint64_t tag) {
  const std::size_t index = take_slot(false, std::move(chunk), bytes, tag);
  Slot& slot = slots_[index];
  const Status begun = begin_load(context_, slot.chunk, bytes, slot.target.file);
  if (begun.ok()) return transfer_rest(index);
  finish(index, begun);
}

void FilesWindow::start_store(ChunkName chunk, std::span<std::byte> bytes, std::uint64_t tag) {
  const std::size_t index = take_slot(true, std::move(chunk), bytes, tag);
  Slot& slot = slots_[index];
  bool is_there = false;
  const Status begun = begin_store(context_, temporary_for(context_, slot.chunk.path), slot.chunk, bytes,
                                   slot.target, is_there);
  if (!begun.ok() || is_there) return finish(index, begun);
  // A write that lets its file grow would not run beside others.
  const Status reserved = fs::reserve(slot.target.file, bytes.size());
  if (reserved.ok()) return transfer_rest(index);
  end(index, reserved);
}

void FilesWindow::progress(bool wait) {
  if (!ring_.submit(wait && results_.empty() ? 1 : 0).ok()) transfer_without_ring();
  queued_.clear();
  fs::Ring::Completion completion;
  while (ring_.take(completion)) advance(completion.tag, completion.result);
}

std::vector<FilesWindow::Result> FilesWindow::results() { return std::exchange(results_, {}); }

std::size_t FilesWindow::take_slot(bool stores, ChunkName chunk, std::span<std::byte> bytes,
                                   std::uint64_t tag) {
  const std::size_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.stores = stores;
  slot.chunk = std::move(chunk);
  slot.bytes = bytes;
  slot.moved = 0;
  slot.tag = tag;
  return index;
}

void FilesWindow::transfer_rest(std::size_t index) {
  Slot& slot = slots_[index];
  const auto direction = slot.stores ? fs::Ring::Direction::kWrite : fs::Ring::Direction::kRead;
  // A slot has at most one transfer, and there are as many slots as the ring is deep.
  (void)ring_.queue(direction, slot.target.file.fd.get(), slot.bytes.subspan(slot.moved), slot.moved, index);
  queued_.push_back(index);
}

// Judge one answer of the kernel: go on, end, or begin again buffered.
void FilesWindow::advance(std::size_t index, int result) {
  Slot& slot = slots_[index];
  if (result > 0) {
    slot.moved += static_cast<std::size_t>(result);
    return slot.moved < slot.bytes.size() ? transfer_rest(index) : end(index, Status::success());
  }
  if (result == 0) return end(index, slot.stores ? Status::failure(EIO, "write") : Status::success());
  if (result == -EINTR) return transfer_rest(index);
  // The ring has no means for it now, and may have none for as long as it is asked.
  if (result == -EAGAIN) return transfer_plainly(index);
  if (result == -EINVAL && slot.target.file.direct) {
    if (slot.moved == 0) context_.direct.refused(slot.bytes);
    const Status left = fs::leave_direct(slot.target.file);
    return left.ok() ? transfer_rest(index) : end(index, left);
  }
  end(index, Status::failure(-result, slot.stores ? "write" : "read"));
}

// No more bytes move: say what that means for the chunk.
void FilesWindow::end(std::size_t index, const Status& transferred) {
  Slot& slot = slots_[index];
  if (!slot.stores) {
    return finish(index, transferred.ok()
                             ? end_load(context_, slot.chunk, slot.target.file, slot.bytes, slot.moved)
                             : transferred);
  }
  bool is_there = false;
  const Status ended =
      end_store(context_, std::exchange(slot.target, {}), slot.chunk, slot.bytes, transferred, is_there);
  slot.moved = ended.ok() && !is_there ? slot.bytes.size() : 0;
  finish(index, ended);
}

void FilesWindow::finish(std::size_t index, const Status& status) {
  Slot& slot = slots_[index];
  slot.target = {};
  results_.push_back({slot.tag, status, slot.moved, std::move(slot.chunk.path)});
  free_.push_back(index);
}

// The kernel took no more transfers (out of memory, say): do those the plain way.
void FilesWindow::transfer_without_ring() {
  const std::size_t left = ring_.queued();
  ring_.drop_queued();
  const std::vector<std::size_t> orphans(queued_.end() - static_cast<std::ptrdiff_t>(left), queued_.end());
  for (const std::size_t index : orphans) transfer_plainly(index);
}

void FilesWindow::transfer_plainly(std::size_t index) {
  Slot& slot = slots_[index];
  end(index, slot.stores ? fs::write_all(slot.target.file, slot.bytes, context_.direct)
                         : fs::read_all(slot.target.file, slot.bytes, context_.direct, slot.moved));
}

}  // namespace kvfs::layouts
