// The one place where a Status becomes a Python exception.
//
// | core                                   | Python                                              |
// |----------------------------------------|-----------------------------------------------------|
// | Status with an errno, path             | OSError(errno, text, path), .num_succeeded           |
// | a bad argument (arguments.hpp)         | TypeError or ValueError                             |
// | a closed engine, or one after a fork   | RuntimeError                                        |
#pragma once

#include <cstddef>
#include <string>

#include "base/status.hpp"

namespace kvfs::python {

// Throw OSError for the element after `num_succeeded` good ones of a batch. Needs the GIL.
[[noreturn]] void raise_os_error(const Status& status, const std::string& path, std::size_t num_succeeded);

}  // namespace kvfs::python
