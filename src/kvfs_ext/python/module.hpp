// What each topic adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace kvfs::python {

void bind_batch(nanobind::module_& module);
void bind_copy(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_index(nanobind::module_& module);
void bind_tier_lookup(nanobind::module_& module);

}  // namespace kvfs::python
