// Reading and writing small files.
#include "fs/stream.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "fs/file.hpp"

namespace kvfs::fs {

Status InputStream::open(const Directory& directory, const std::string& name) {
  file_ = Fd(::openat(directory.at(), name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file_.valid()) return Status::from_errno("open");
  Entry entry;
  if (const Status seen = inspect(file_, entry); !seen.ok()) return seen;
  if (entry.kind != Kind::kRegular) return Status::failure(EBADMSG, "open");
  size_bytes_ = entry.size_bytes;
  return Status::success();
}

Status InputStream::read(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::read(file_.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Status::from_errno("read");
    if (got == 0) return Status::failure(EBADMSG, "read");
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return Status::success();
}

Status InputStream::patch(std::size_t offset, std::byte byte) {
  ssize_t put;
  do {
    put = ::pwrite(file_.get(), &byte, 1, static_cast<off_t>(offset));
  } while (put < 0 && errno == EINTR);
  if (put < 0) return Status::from_errno("write");
  return put == 1 ? Status::success() : Status::failure(EIO, "write");
}

OutputStream::~OutputStream() {
  if (!temporary_.empty()) (void)remove(directory_->at(), temporary_);
}

Status OutputStream::create(const Directory& directory, std::string temporary) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  file_ = Fd(::openat(directory.at(), temporary.c_str(), kFlags, directory.modes().file));
  if (!file_.valid()) return Status::from_errno("create");
  (void)give_mode(file_, directory.modes());
  directory_ = &directory;
  temporary_ = std::move(temporary);
  return Status::success();
}

Status OutputStream::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file_.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return Status::from_errno("write");
    if (put == 0) return Status::failure(EIO, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(put));
  }
  return Status::success();
}

Status OutputStream::publish(const std::string& name) {
  if (const Status closed = file_.close(); !closed.ok()) return closed;
  const Status moved = move(directory_->at(), temporary_, name, Replace::kAlways);
  if (moved.ok()) temporary_.clear();
  return moved;
}

}  // namespace kvfs::fs
