// Whether io_uring really works here: containers' seccomp filters often forbid it, and some file
// systems refuse what others take.
#pragma once

#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::fs {

// Write an aligned page to a new file in `directory`, `temporary`, read it back through a ring with a
// registered buffer, compare, and remove the file. Blocks. The failure names the step. FUSE always fails:
// where such a file system reads less than it was asked for, the kernel (6.18) goes on at the same place
// instead of the next and reports success, or it makes EIO of a short write, depending on what the file
// system negotiated.
Status probe_ring(const Directory& directory, const std::string& temporary, bool use_o_direct);

}  // namespace kvfs::fs
