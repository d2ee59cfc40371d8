// Names in directories.
#include "fs/listing.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

namespace kvfs::fs {

Status open_directory(int at, const char* name, Fd& directory) {
  directory = Fd(::openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  return directory.valid() ? Status::success() : Status::from_errno("open");
}

Status Listing::read(const Fd& directory, std::vector<std::string>& names) {
  names.clear();
  while (true) {
    const long got = ::syscall(SYS_getdents64, directory.get(), buffer_.data(), buffer_.size());
    if (got < 0) return Status::from_errno("list");
    if (got == 0) return Status::success();
    for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
      const auto* const entry = reinterpret_cast<const struct dirent64*>(buffer_.data() + at);
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      at += entry->d_reclen;
    }
  }
}

}  // namespace kvfs::fs
