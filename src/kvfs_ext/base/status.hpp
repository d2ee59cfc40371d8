// What became of one operation on a file: an errno and the step that met it.
#pragma once

#include <cerrno>

namespace kvfs {

// A value, never thrown: worker threads hand it back and one place in python/ turns it into an
// exception. `step` points to a string literal ("open", "write", ...), so a Status owns nothing.
struct [[nodiscard]] Status {
  int code = 0;
  const char* step = "";

  [[nodiscard]] bool ok() const { return code == 0; }

  static Status success() { return {}; }
  static Status failure(int error_code, const char* failed_step) { return {error_code, failed_step}; }
  // The errno that the call just before left behind.
  static Status from_errno(const char* failed_step) { return {errno, failed_step}; }
};

}  // namespace kvfs
