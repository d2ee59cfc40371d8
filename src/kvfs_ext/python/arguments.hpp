// Checks and conversions of what Python hands over. Everything here needs the GIL and throws the
// exception that docs/engine.md promises; nothing is moved before all of a call's arguments are checked.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvfs::python {

namespace nb = nanobind;

enum class Access { kRead, kWrite };

// How messages call an argument: "buffer", or "buffers[3]" for an element. Text is made on failure alone.
struct ArgumentName {
  const char* name;
  std::ptrdiff_t index = -1;

  [[nodiscard]] std::string text() const {
    return index < 0 ? name : std::string(name) + "[" + std::to_string(index) + "]";
  }
};

// A C-contiguous buffer, pinned for as long as this object lives. Move-only; destroy with the GIL.
class BufferView {
 public:
  // TypeError without the buffer protocol,
  // ValueError when not C-contiguous, or read-only and `access` is kWrite.
  BufferView(nb::handle object, Access access, ArgumentName name);
  BufferView(BufferView&& other) noexcept;
  BufferView(const BufferView&) = delete;
  BufferView& operator=(const BufferView&) = delete;
  BufferView& operator=(BufferView&&) = delete;
  ~BufferView();

  [[nodiscard]] std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }
  [[nodiscard]] const Py_buffer& raw() const { return view_; }

 private:
  Py_buffer view_;
};

// A list of str as file-system paths. `name` is the argument's.
std::vector<std::string> path_list(nb::handle object, const char* name);
// One str as a file-system path.
std::string path(nb::handle object, ArgumentName name);
// A list of buffers, none of them empty.
std::vector<BufferView> buffer_list(nb::handle object, Access access, const char* name);
// A list of integers. One that does not fit 64 bits becomes -1, which no range contains.
std::vector<std::int64_t> integer_list(nb::handle object, const char* name);

// ValueError unless both lists are equally long.
void check_same_length(std::size_t left, const char* left_name, std::size_t right, const char* right_name);

}  // namespace kvfs::python
