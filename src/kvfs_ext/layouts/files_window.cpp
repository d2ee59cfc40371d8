// Loads of one thread that are under way at the same time.
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

void FilesWindow::start(std::string path, std::span<std::byte> bytes, std::uint64_t tag) {
  const std::size_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.path = std::move(path);
  slot.bytes = bytes;
  slot.moved = 0;
  slot.tag = tag;
  if (const Status begun = begin_load(context_, slot.path, bytes, slot.file); !begun.ok()) {
    finish(index, begun);
  } else {
    read_rest(index);
  }
}

void FilesWindow::progress(bool wait) {
  if (!ring_.submit(wait && results_.empty() ? 1 : 0).ok()) read_without_ring();
  queued_.clear();
  fs::Ring::Completion completion;
  while (ring_.take(completion)) advance(completion.tag, completion.result);
}

std::vector<FilesWindow::Result> FilesWindow::results() { return std::exchange(results_, {}); }

void FilesWindow::read_rest(std::size_t index) {
  Slot& slot = slots_[index];
  // A slot has at most one read, and there are as many slots as the ring is deep.
  (void)ring_.read(slot.file.fd.get(), slot.bytes.subspan(slot.moved), slot.moved, index);
  queued_.push_back(index);
}

// Judge one answer of the kernel: go on, end, or begin again buffered.
void FilesWindow::advance(std::size_t index, int result) {
  Slot& slot = slots_[index];
  if (result > 0) {
    slot.moved += static_cast<std::size_t>(result);
    if (slot.moved < slot.bytes.size()) return read_rest(index);
    return finish(index, Status::success());
  }
  if (result == 0) return finish(index, end_load(context_, slot.path, slot.file, slot.bytes, slot.moved));
  if (result == -EINTR || result == -EAGAIN) return read_rest(index);
  if (result == -EINVAL && slot.file.direct) {
    if (slot.moved == 0) context_.direct.refused(slot.bytes);
    if (const Status left = fs::leave_direct(slot.file); !left.ok()) return finish(index, left);
    return read_rest(index);
  }
  finish(index, Status::failure(-result, "read"));
}

void FilesWindow::finish(std::size_t index, const Status& status) {
  Slot& slot = slots_[index];
  slot.file = fs::File();
  results_.push_back({slot.tag, status, slot.moved, std::move(slot.path)});
  free_.push_back(index);
}

// The kernel took no more reads (out of memory, say): do those the plain way.
void FilesWindow::read_without_ring() {
  const std::size_t left = ring_.queued();
  ring_.drop_queued();
  const std::vector<std::size_t> orphans(queued_.end() - static_cast<std::ptrdiff_t>(left), queued_.end());
  for (const std::size_t index : orphans) {
    Slot& slot = slots_[index];
    Status status = fs::read_all(slot.file, slot.bytes, context_.direct, slot.moved);
    if (status.ok()) status = end_load(context_, slot.path, slot.file, slot.bytes, slot.moved);
    finish(index, status);
  }
}

}  // namespace kvfs::layouts
