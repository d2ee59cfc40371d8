// The module kvfs_ext.
#include "python/module.hpp"

NB_MODULE(kvfs_ext, module) {
  module.doc() =
      "kvfs's native engine: batched lookup, store and load of chunks without the GIL.\n\n"
      "docs/engine.md in the source has the contract; kvfs.fallback keeps the same one in Python.";
  kvfs::python::bind_batch(module);
  kvfs::python::bind_copy(module);
  kvfs::python::bind_tier_lookup(module);
  kvfs::python::bind_engine(module);
  kvfs::python::bind_index(module);
}
