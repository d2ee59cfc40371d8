// Whether io_uring really works here: containers' seccomp filters often forbid it, and some file
// systems refuse what others take.
#pragma once

#include "base/status.hpp"
#include "fs/directory.hpp"

namespace kvfs::fs {

// Write an aligned page to a new file in `directory`, `temporary`, read it back through a ring with a
// registered buffer, compare, and remove the file. Blocks. The failure names the step.
Status probe_ring(const Directory& directory, const std::string& temporary, bool use_o_direct);

}  // namespace kvfs::fs
