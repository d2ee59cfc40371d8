// What the fuzz targets share: a directory of their own, files in it, and a way to end on a broken invariant.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "base/fd.hpp"
#include "fs/directory.hpp"

namespace kvfs::testing {

// Ends the process, which the fuzzer takes for a finding.
inline void require(bool holds, const char* invariant) {
  if (holds) return;
  std::fprintf(stderr, "kvfs: broken invariant: %s\n", invariant);
  std::abort();
}

// A directory below $TMPDIR that a run has to itself; gone when the process ends well, see the session.
inline std::string make_scratch() {
  const char* const parent = std::getenv("TMPDIR");
  std::string path = std::string(parent != nullptr ? parent : "/tmp") + "/kvfs-fuzz-XXXXXX";
  require(::mkdtemp(path.data()) != nullptr, "a scratch directory can be made");
  return path;
}

// Opened once a process.
inline fs::Directory& scratch() {
  static fs::Directory& directory = *[] {
    // Never freed: fuzzers leave by _exit().
    static auto* const made = new fs::Directory;
    require(made->open(make_scratch()).ok(), "the scratch directory can be opened");
    return made;
  }();
  return directory;
}

// Make `name` a file with these bytes, whatever it was.
inline Fd write_file(const char* name, std::span<const std::uint8_t> bytes) {
  Fd file(::openat(scratch().at(), name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  require(file.valid(), "a file can be made");
  const auto size = static_cast<ssize_t>(bytes.size());
  require(::write(file.get(), bytes.data(), bytes.size()) == size, "a file can be written");
  return file;
}

}  // namespace kvfs::testing
