// How a file that is whole gets its name.
#include "fs/publish.hpp"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "fs/file.hpp"

namespace kvfs::fs {

Publish probe_publish(const Directory& directory, const std::string& temporary) {
  struct statfs file_system;
  if (::fstatfs(directory.at(), &file_system) != 0 || file_system.f_type == FUSE_SUPER_MAGIC)
    return Publish::kRename;
  const Fd file(::openat(directory.at(), ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, directory.modes().file));
  if (!file.valid()) return Publish::kRename;
  for (const Publish how : {Publish::kLinkDescriptor, Publish::kLinkProc}) {
    if (!link_file(file, directory.at(), temporary, how).ok()) continue;
    (void)remove(directory.at(), temporary);
    return how;
  }
  return Publish::kRename;
}

Status link_file(const Fd& file, int at, const std::string& path, Publish how) {
  int linked = 0;
  if (how == Publish::kLinkDescriptor) {
    linked = ::linkat(file.get(), "", at, path.c_str(), AT_EMPTY_PATH);
  } else {
    const std::string proc = "/proc/self/fd/" + std::to_string(file.get());
    linked = ::linkat(AT_FDCWD, proc.c_str(), at, path.c_str(), AT_SYMLINK_FOLLOW);
  }
  return linked == 0 ? Status::success() : Status::from_errno("link");
}

}  // namespace kvfs::fs
