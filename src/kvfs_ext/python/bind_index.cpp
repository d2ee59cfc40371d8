// The index by itself: what a measurement at a size needs for which nobody has the files.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <string_view>

#include "index/key_index.hpp"
#include "python/arguments.hpp"
#include "python/module.hpp"

namespace kvfs::python {

void bind_index(nb::module_& module) {
  using index::KeyIndex;
  using index::Known;
  nb::class_<KeyIndex>(module, "KeyIndex",
                       "What an engine knows of its keys, without an engine and without files. Thread-safe.")
      .def(
          "__init__",
          [](KeyIndex* self, nb::handle negative_ttl_s) {
            new (self) KeyIndex(seconds(negative_ttl_s, "negative_ttl_s"));
          },
          nb::arg("negative_ttl_s").none() = 1.0,
          nb::sig("def __init__(self, negative_ttl_s: float = 1.0) -> None"),
          R"(Make an empty index.

Args:
    negative_ttl_s: How long an absence is believed.

Raises:
    TypeError: No number.
    ValueError: Negative, or not finite.)")
      .def(
          "insert",
          [](KeyIndex& self, const nb::bytes& keys, std::int64_t key_size_bytes) {
            const std::string_view packed = packed_view(keys, key_size_bytes);
            const nb::gil_scoped_release unlocked;
            const auto size = static_cast<std::size_t>(key_size_bytes);
            for (std::size_t at = 0; at < packed.size(); at += size)
              self.put(packed.substr(at, size), 0, self.take_uses(1));
          },
          nb::arg("keys"), nb::arg("key_size_bytes"),
          R"(Make the packed keys present, without the GIL.

Raises:
    TypeError: ``keys`` is no bytes object.
    ValueError: The packed length is no multiple of the key size, or that is out of range.)")
      .def(
          "lookup",
          [](const KeyIndex& self, const nb::bytes& key) {
            check_key_size(key.size(), "key");
            return self.find({key.c_str(), key.size()}) == Known::kPresent ? 1 : 0;
          },
          nb::arg("key"),
          R"(Return 1 for a key that is present, else 0.

Raises:
    TypeError: No bytes.
    ValueError: A key of less than 5 or more than 255 bytes.)")
      .def(
          "lookup_prefix",
          [](const KeyIndex& self, const nb::bytes& keys, std::int64_t key_size_bytes) {
            return self.present_prefix(packed_view(keys, key_size_bytes),
                                       static_cast<std::size_t>(key_size_bytes));
          },
          nb::arg("keys"), nb::arg("key_size_bytes"),
          "Count the packed keys that are present, up to the first that is not; errors as in insert().")
      .def_prop_ro("memory_bytes", &KeyIndex::memory_bytes, "Bytes of memory that it takes.")
      .def("__len__", &KeyIndex::present, "Number of present keys.");
}

}  // namespace kvfs::python
