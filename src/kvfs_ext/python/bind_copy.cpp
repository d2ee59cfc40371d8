// Copies between two buffers without the GIL: the CPU platform's device-to-host transfer.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "python/arguments.hpp"
#include "python/module.hpp"

namespace kvfs::python {

namespace {

void check_ranges(const std::vector<std::int64_t>& offsets, std::size_t length, std::size_t size,
                  const char* name) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    // Written so that no sum can overflow.
    const auto offset = static_cast<std::uint64_t>(offsets[i]);
    if (offsets[i] >= 0 && length <= size && offset <= size - length) continue;
    throw nb::value_error((std::string(name) + "[" + std::to_string(i) + "]: a page of " +
                           std::to_string(length) + " bytes at offset " + std::to_string(offsets[i]) +
                           " lies outside a buffer of " + std::to_string(size) + " bytes")
                              .c_str());
  }
}

void copy_pages(nb::handle src_object, nb::handle dst_object, nb::handle src_offsets_object,
                nb::handle dst_offsets_object, std::int64_t page_size_bytes) {
  const BufferView src(src_object, Access::kRead, {"src"});
  const BufferView dst(dst_object, Access::kWrite, {"dst"});
  const std::vector<std::int64_t> src_offsets = integer_list(src_offsets_object, "src_offsets");
  const std::vector<std::int64_t> dst_offsets = integer_list(dst_offsets_object, "dst_offsets");
  check_same_length(src_offsets.size(), "src_offsets", dst_offsets.size(), "dst_offsets");
  if (page_size_bytes < 0) {
    throw nb::value_error(
        ("page_size_bytes must not be negative, got " + std::to_string(page_size_bytes)).c_str());
  }
  const auto length = static_cast<std::size_t>(page_size_bytes);
  const std::span<std::byte> from = src.bytes();
  const std::span<std::byte> to = dst.bytes();
  check_ranges(src_offsets, length, from.size(), "src_offsets");
  check_ranges(dst_offsets, length, to.size(), "dst_offsets");

  const nb::gil_scoped_release unlocked;
  for (std::size_t i = 0; i < src_offsets.size(); ++i) {
    // memmove: both buffers may be views of one memory.
    std::memmove(to.data() + dst_offsets[i], from.data() + src_offsets[i], length);
  }
}

}  // namespace

void bind_copy(nb::module_& module) {
  module.def("copy_pages", &copy_pages, nb::arg("src").none(), nb::arg("dst").none(),
             nb::arg("src_offsets").none(), nb::arg("dst_offsets").none(), nb::arg("page_size_bytes"),
             nb::sig("def copy_pages(src: typing_extensions.Buffer, dst: typing_extensions.Buffer, "
                     "src_offsets: list[int], dst_offsets: list[int], page_size_bytes: int) -> None"),
             R"(Copy pages of one size from offsets of one buffer to offsets of another.

Blocks the calling thread without the GIL. All ranges are checked before the first byte is copied.

Args:
    src: A C-contiguous buffer; offsets count its bytes, whatever its shape.
    dst: A writable C-contiguous buffer.
    src_offsets: Where each page starts in ``src``, in bytes.
    dst_offsets: Where each page goes in ``dst``, in bytes.
    page_size_bytes: Length of each page.

Raises:
    TypeError: A buffer without the buffer protocol, an offset that is no integer.
    ValueError: Lists of different lengths, a page outside its buffer, a buffer that is not C-contiguous,
        a read-only ``dst``.)");
}

}  // namespace kvfs::python
