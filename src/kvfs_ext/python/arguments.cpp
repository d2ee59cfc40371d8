// Checks and conversions of what Python hands over.
#include "python/arguments.hpp"

#include "layouts/files.hpp"

#include <nanobind/stl/string.h>

#include <utility>

namespace kvfs::python {

namespace {

std::string python_type_name(nb::handle object) {
  return nb::cast<std::string>(nb::handle(object.type()).attr("__name__"));
}

ArgumentName element_of(const char* name, std::size_t index) {
  return {name, static_cast<std::ptrdiff_t>(index)};
}

// The elements of a list as they are now: converting one may run Python code that changes the list.
nb::tuple elements_of(nb::handle object, const char* name) {
  if (!nb::isinstance<nb::list>(object)) {
    throw nb::type_error((std::string(name) + " must be a list, got " + python_type_name(object)).c_str());
  }
  const nb::object elements = nb::steal(PyList_AsTuple(object.ptr()));
  if (!elements.is_valid()) nb::raise_python_error();
  return nb::borrow<nb::tuple>(elements);
}

}  // namespace

BufferView::BufferView(nb::handle object, Access access, ArgumentName name) {
  if (!PyObject_CheckBuffer(object.ptr())) {
    throw nb::type_error((name.text() +
                          " must be an object with the buffer protocol (a memoryview, a NumPy array), got " +
                          python_type_name(object))
                             .c_str());
  }
  // Ask for anything, then refuse by our own rules: the exporter's own refusals vary.
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FULL_RO) != 0) nb::raise_python_error();
  const char* wrong = nullptr;
  if (PyBuffer_IsContiguous(&view_, 'C') == 0) {
    wrong = " must be C-contiguous; copy it into a contiguous buffer first";
  } else if (access == Access::kWrite && view_.readonly != 0) {
    wrong = " must be writable, because chunks are loaded into it";
  }
  if (wrong != nullptr) {
    PyBuffer_Release(&view_);
    throw nb::value_error((name.text() + wrong).c_str());
  }
}

BufferView::BufferView(BufferView&& other) noexcept : view_(other.view_) {
  // A Py_buffer without an object releases nothing.
  other.view_.obj = nullptr;
}

BufferView::~BufferView() { PyBuffer_Release(&view_); }

std::string path(nb::handle object, ArgumentName name) {
  if (!nb::isinstance<nb::str>(object)) {
    throw nb::type_error((name.text() + " must be a str, got " + python_type_name(object)).c_str());
  }
  // os.fsencode's rules: a surrogate that stands for an undecodable byte is fine, a lone one is
  // UnicodeEncodeError, which is a ValueError.
  const nb::object encoded = nb::steal(PyUnicode_EncodeFSDefault(object.ptr()));
  if (!encoded.is_valid()) nb::raise_python_error();
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(encoded.ptr(), &data, &size) != 0) nb::raise_python_error();
  std::string text(data, static_cast<std::size_t>(size));
  if (text.find('\0') != std::string::npos) {
    throw nb::value_error(
        (name.text() + " has an embedded null character; no file can have that name").c_str());
  }
  return text;
}

std::vector<std::string> path_list(nb::handle object, const char* name) {
  const nb::tuple elements = elements_of(object, name);
  std::vector<std::string> paths;
  paths.reserve(elements.size());
  for (nb::handle element : elements) paths.push_back(path(element, element_of(name, paths.size())));
  return paths;
}

std::vector<BufferView> buffer_list(nb::handle object, Access access, const char* name) {
  const nb::tuple elements = elements_of(object, name);
  std::vector<BufferView> buffers;
  buffers.reserve(elements.size());
  for (nb::handle element : elements) {
    buffers.emplace_back(element, access, element_of(name, buffers.size()));
    if (buffers.back().bytes().empty()) {
      throw nb::value_error(
          (element_of(name, buffers.size() - 1).text() + " is empty; a chunk has at least one byte").c_str());
    }
  }
  return buffers;
}

std::vector<std::int64_t> integer_list(nb::handle object, const char* name) {
  const nb::tuple elements = elements_of(object, name);
  std::vector<std::int64_t> numbers;
  numbers.reserve(elements.size());
  for (nb::handle element : elements) {
    // Takes NumPy's integers too; TypeError for what is no integer.
    const nb::object index = nb::steal(PyNumber_Index(element.ptr()));
    if (!index.is_valid()) {
      PyErr_Clear();
      throw nb::type_error(
          (element_of(name, numbers.size()).text() + " must be an integer, got " + python_type_name(element))
              .c_str());
    }
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    numbers.push_back(overflow != 0 ? -1 : number);
  }
  return numbers;
}

void check_same_length(std::size_t left, const char* left_name, std::size_t right, const char* right_name) {
  if (left == right) return;
  throw nb::value_error((std::string(left_name) + " and " + right_name + " must be equally long, got " +
                         std::to_string(left) + " and " + std::to_string(right))
                            .c_str());
}

std::string_view packed_view(const nb::bytes& keys, std::int64_t key_size_bytes) {
  constexpr auto kMin = static_cast<std::int64_t>(layouts::kKeySizeMin);
  constexpr auto kMax = static_cast<std::int64_t>(layouts::kKeySizeMax);
  if (key_size_bytes < kMin || key_size_bytes > kMax) {
    throw nb::value_error(("key_size_bytes must be between " + std::to_string(kMin) + " and " +
                           std::to_string(kMax) + " (a hash and 4 bytes of group index), got " +
                           std::to_string(key_size_bytes))
                              .c_str());
  }
  if (keys.size() % static_cast<std::size_t>(key_size_bytes) != 0) {
    throw nb::value_error(("keys has " + std::to_string(keys.size()) +
                           " bytes, which is no multiple of key_size_bytes " + std::to_string(key_size_bytes))
                              .c_str());
  }
  return {keys.c_str(), keys.size()};
}

bool is_key_size(std::size_t size_bytes) {
  return size_bytes >= layouts::kKeySizeMin && size_bytes <= layouts::kKeySizeMax;
}

void check_key_size(std::size_t size_bytes, const char* name) {
  if (is_key_size(size_bytes)) return;
  throw nb::value_error((std::string(name) + " must have between " + std::to_string(layouts::kKeySizeMin) +
                         " and " + std::to_string(layouts::kKeySizeMax) +
                         " bytes (a hash and 4 bytes of group index), got " + std::to_string(size_bytes))
                            .c_str());
}

double seconds(nb::handle object, const char* name) {
  if (!PyFloat_Check(object.ptr()) && (!PyLong_Check(object.ptr()) || PyBool_Check(object.ptr())))
    throw nb::type_error(
        (std::string(name) + " must be a number of seconds, got " + python_type_name(object)).c_str());
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  if (!std::isfinite(value) || value < 0)
    throw nb::value_error((std::string(name) + " must be a finite number of seconds from 0, got " +
                           nb::cast<std::string>(nb::str(object)))
                              .c_str());
  return value;
}

}  // namespace kvfs::python
