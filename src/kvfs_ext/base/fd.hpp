// A file descriptor with one owner.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/status.hpp"

namespace kvfs {

// Move-only; closes on destruction. Not thread-safe: one thread owns it at a time.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int number) : number_(number) {}
  Fd(Fd&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      (void)close();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { (void)close(); }

  [[nodiscard]] bool valid() const { return number_ >= 0; }
  [[nodiscard]] int get() const { return number_; }

  // Close now and say whether the system reported a late write error (NFS, quotas). EINTR is no
  // error: Linux has released the number by then.
  Status close() {
    const int number = std::exchange(number_, -1);
    if (number >= 0 && ::close(number) != 0 && errno != EINTR) return Status::from_errno("close");
    return Status::success();
  }

 private:
  int number_ = -1;
};

}  // namespace kvfs
