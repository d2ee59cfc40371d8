// The one place where a Status becomes a Python exception.
#include "python/errors.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <system_error>

namespace nb = nanobind;

namespace kvfs::python {

void raise_os_error(const Status& status, const std::string& path, std::size_t num_succeeded) {
  const nb::object filename =
      nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
  if (!filename.is_valid()) nb::raise_python_error();
  const std::string text =
      std::string(status.step) + " failed: " + std::generic_category().message(status.code);
  // OSError picks FileNotFoundError and its kin from the errno.
  const nb::object error = nb::handle(PyExc_OSError)(status.code, text, filename);
  error.attr("num_succeeded") = num_succeeded;
  PyErr_SetObject(error.type().ptr(), error.ptr());
  nb::raise_python_error();
}

}  // namespace kvfs::python
