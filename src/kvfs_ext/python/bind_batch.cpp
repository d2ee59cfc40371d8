// Level 1: batches over paths, one release of the GIL each.
#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <vector>

#include "layouts/files.hpp"
#include "python/arguments.hpp"
#include "python/errors.hpp"
#include "python/module.hpp"

namespace kvfs::python {

namespace {

nb::list batch_lookup(nb::handle paths_object) {
  const std::vector<std::string> paths = path_list(paths_object, "paths");
  std::vector<char> found(paths.size());
  {
    const nb::gil_scoped_release unlocked;
    for (std::size_t i = 0; i < paths.size(); ++i) found[i] = layouts::exists_file(paths[i]);
  }
  nb::list result;
  for (const char present : found) result.append(present != 0);
  return result;
}

void batch_store(nb::handle tmp_paths_object, nb::handle dest_paths_object, nb::handle buffers_object,
                 bool use_o_direct) {
  const std::vector<std::string> tmp_paths = path_list(tmp_paths_object, "tmp_paths");
  const std::vector<std::string> dest_paths = path_list(dest_paths_object, "dest_paths");
  const std::vector<BufferView> buffers = buffer_list(buffers_object, Access::kRead, "buffers");
  check_same_length(tmp_paths.size(), "tmp_paths", dest_paths.size(), "dest_paths");
  check_same_length(dest_paths.size(), "dest_paths", buffers.size(), "buffers");

  layouts::FilesContext context(use_o_direct);
  Status status;
  std::size_t done = 0;
  {
    const nb::gil_scoped_release unlocked;
    for (; done < dest_paths.size(); ++done) {
      std::size_t moved = 0;
      status =
          layouts::store_file(context, tmp_paths[done], {dest_paths[done], {}}, buffers[done].bytes(), moved);
      if (!status.ok()) break;
    }
  }
  if (!status.ok()) raise_os_error(status, dest_paths[done], done);
}

void batch_load(nb::handle paths_object, nb::handle buffers_object, bool use_o_direct) {
  const std::vector<std::string> paths = path_list(paths_object, "paths");
  const std::vector<BufferView> buffers = buffer_list(buffers_object, Access::kWrite, "buffers");
  check_same_length(paths.size(), "paths", buffers.size(), "buffers");

  layouts::FilesContext context(use_o_direct);
  Status status;
  std::size_t done = 0;
  {
    const nb::gil_scoped_release unlocked;
    for (; done < paths.size(); ++done) {
      std::size_t moved = 0;
      status = layouts::load_file(context, {paths[done], {}}, buffers[done].bytes(), moved);
      if (!status.ok()) break;
    }
  }
  if (!status.ok()) raise_os_error(status, paths[done], done);
}

}  // namespace

void bind_batch(nb::module_& module) {
  module.def("batch_lookup", &batch_lookup, nb::arg("paths").none(),
             nb::sig("def batch_lookup(paths: list[str]) -> list[bool]"),
             R"(Say for each path whether a regular file that is not empty lies there.

Blocks the calling thread without the GIL. Links are not followed.

Args:
    paths: A list of str; an empty one is fine.

Returns:
    One bool a path, in order. A path that cannot be looked at is False.

Raises:
    TypeError: ``paths`` is no list or an element is no str.
    ValueError: A path has a null character or cannot be encoded.)");
  module.def("batch_store", &batch_store, nb::arg("tmp_paths").none(), nb::arg("dest_paths").none(),
             nb::arg("buffers").none(), nb::arg("use_o_direct").noconvert() = true,
             nb::sig("def batch_store(tmp_paths: list[str], dest_paths: list[str], "
                     "buffers: list[typing_extensions.Buffer], use_o_direct: bool = True) -> None"),
             R"(Store each buffer at its path, whole or not at all.

Blocks the calling thread without the GIL. Missing directories are made (0700); files get mode 0600.
A file of the buffer's size that is there already is kept; one of another size is replaced.

Args:
    tmp_paths: Where each file is written first. No other writer may use the same name.
    dest_paths: Where each file is published, on the same file system.
    buffers: C-contiguous buffers of at least one byte.
    use_o_direct: Try to bypass the page cache; what refuses that is written through it.

Raises:
    TypeError: An argument is no list, an element no str or no buffer.
    ValueError: The lists differ in length, a path has a null character, a buffer is empty or not C-contiguous.
    OSError: The first store that failed, with ``errno``, ``filename`` and ``num_succeeded``.)");
  module.def("batch_load", &batch_load, nb::arg("paths").none(), nb::arg("buffers").none(),
             nb::arg("use_o_direct").noconvert() = true,
             nb::sig("def batch_load(paths: list[str], buffers: list[typing_extensions.Buffer], "
                     "use_o_direct: bool = True) -> None"),
             R"(Fill each buffer from its file, which must have exactly the buffer's size.

Blocks the calling thread without the GIL. Links are not followed. A file that is shorter than its buffer is
removed; after any other failure it stays. What a failed load leaves in its buffer is unspecified.

Args:
    paths: The files.
    buffers: Writable C-contiguous buffers of at least one byte.
    use_o_direct: Try to bypass the page cache; what refuses that is read through it.

Raises:
    TypeError: An argument is no list, an element no str or no buffer.
    ValueError: The lists differ in length, a path has a null character, a buffer is empty, read-only or
        not C-contiguous.
    OSError: The first load that failed, with ``errno`` (EBADMSG for a wrong size), ``filename`` and
        ``num_succeeded``.)");
}

}  // namespace kvfs::python
