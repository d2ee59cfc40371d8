// Checks and conversions of what Python hands over. Everything here needs the GIL and throws the
// exception that docs/engine.md promises; nothing is moved before all of a call's arguments are checked.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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

// The bytes of keys that are packed one after the other; they live as long as `keys`. ValueError for a key
// size out of range or a length that is no multiple of it.
std::string_view packed_view(const nb::bytes& keys, std::int64_t key_size_bytes);
// ValueError unless one key may have so many bytes.
[[nodiscard]] bool is_key_size(std::size_t size_bytes);
void check_key_size(std::size_t size_bytes, const char* name);
// A finite number from 0. TypeError for what is no number.
double seconds(nb::handle object, const char* name);

// ValueError unless both lists are equally long.
void check_same_length(std::size_t left, const char* left_name, std::size_t right, const char* right_name);

}  // namespace kvfs::python
