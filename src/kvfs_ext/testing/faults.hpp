// Which calls to the system fail, in a build that is made for tests: the rules, and what they hit.
//
// Only a build with KVFS_FAULTS has this room. The linker hands it the calls of our own objects and of
// nothing else in the process (wrapped.txt), so the rooms that are tested are the ones that users have,
// unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace kvfs::testing {

// Calls are told apart by what they are for, not only by name: a fault in making a file is another one than
// in opening one. kCallNames has the names that tests use, in this order.
enum class Call {
  kOpen,
  kOpenat,
  kOpenatCreate,
  kOpenatNameless,
  kOpenatDirectory,
  kOpenatPath,
  kClose,
  kFstat,
  kFstatat,
  kFstatfs,
  kFstatvfs,
  kFcntlDup,
  kFcntlFlags,
  kFcntlLock,
  kDup3,
  kFlock,
  kFtruncate,
  kFallocate,
  kFchmod,
  kFchmodat,
  kPread,
  kPwrite,
  kRead,
  kWrite,
  kFgetxattr,
  kFsetxattr,
  kMkdirat,
  kLinkat,
  kLinkatProc,
  kUnlinkat,
  kRmdir,
  kRenameat,
  kRenameat2,
  kGetdents,
  kMmap,
  kRingSetup,
  kRingRegister,
  kRingEnter,
  kRingWait,
  kRingRead,
  kRingWrite,
  kUnknown,  // a system call by number that nobody has given a name
};
inline constexpr std::size_t kCalls = static_cast<std::size_t>(Call::kUnknown) + 1;
extern const char* const kCallNames[kCalls];

enum class Effect {
  kNone,
  kFail,   // the call is not made
  kLate,   // the call is made, and its answer lost
  kShort,  // the call moves so many bytes at most; with 0 it is not made, and 0 is its answer
  kDelay,  // the call is made after a pause
  kSpin,   // the call is made after as much computing, which CPU time shows, too
};

struct Fault {
  Effect effect = Effect::kNone;
  int error = 0;
  std::size_t bytes = 0;

  [[nodiscard]] bool stops() const { return effect == Effect::kFail; }
  [[nodiscard]] bool is_late() const { return effect == Effect::kLate; }
  // How many of `count` bytes the call is asked for.
  [[nodiscard]] std::size_t limit(std::size_t count) const {
    return effect == Effect::kShort && bytes < count ? bytes : count;
  }
};

// Count a call and say what becomes of it; pauses here if that is the fault. `place` says which path the call
// is about and is only asked when a rule applies. Leaves errno alone. Thread-safe.
Fault decide(Call call, const std::function<std::string()>& place);

// The path of an open descriptor, and of a path that is relative to one.
std::string place_of(int fd);
std::string place_of(int at, const char* path);

}  // namespace kvfs::testing
