// The rules of the faults, and the functions by which a test sets them (through ctypes).
#include "testing/faults.hpp"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string_view>
#include <vector>

namespace kvfs::testing {

const char* const kCallNames[kCalls] = {
    "open",        "openat",        "openat_create", "openat_nameless", "openat_directory",
    "openat_path", "close",         "fstat",         "fstatat",         "fstatfs",
    "fstatvfs",    "fcntl_dup",     "fcntl_flags",   "fcntl_lock",      "dup3",
    "flock",       "ftruncate",     "fallocate",     "fchmod",          "fchmodat",
    "pread",       "pwrite",        "read",          "write",           "fgetxattr",
    "fsetxattr",   "mkdirat",       "linkat",        "linkat_proc",     "unlinkat",
    "rmdir",       "renameat",      "renameat2",     "getdents64",      "mmap",
    "ring_setup",  "ring_register", "ring_enter",    "ring_wait",       "ring_read",
    "ring_write",  "unknown",
};

namespace {

constexpr std::size_t kAnyCall = kCalls;
// A caller that never gives up must not fill the memory.
constexpr std::size_t kHitsMax = 10'000;
constexpr const char* kEffectNames[] = {"none", "fail", "late", "short", "delay", "spin"};

struct Rule {
  std::size_t call = kAnyCall;
  // The first call that it applies to, counted from 1, and how many.
  std::uint64_t first = 1;
  std::uint64_t times = 1;
  Fault fault;
  std::uint64_t delay_ns = 0;
  // What the file system of this test is like: such calls are neither counted nor noted.
  bool standing = false;
};

std::mutex mutex;
std::vector<Rule> rules;
std::vector<std::string> hits;
std::uint64_t counts[kCalls + 1] = {};
bool paused = true;

bool applies(const Rule& rule, std::size_t call) {
  if (rule.call != kAnyCall && rule.call != call) return false;
  if (rule.standing) return true;
  const std::uint64_t number = counts[rule.call];
  return number >= rule.first && number - rule.first < rule.times;
}

constexpr std::uint64_t kSecondNs = 1'000'000'000;

void pause(std::uint64_t delay_ns) {
  struct timespec left = {static_cast<time_t>(delay_ns / kSecondNs), static_cast<long>(delay_ns % kSecondNs)};
  while (::nanosleep(&left, &left) != 0 && errno == EINTR) {
  }
}

// The clock of CPU time would be exact beside other processes, but reading it takes as long as a lookup.
std::uint64_t now_ns() {
  struct timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * kSecondNs + static_cast<std::uint64_t>(now.tv_nsec);
}

void spin(std::uint64_t delay_ns) {
  const std::uint64_t start = now_ns();
  while (now_ns() - start < delay_ns) {
  }
}

// The rule for a call, which is counted on the way; nullptr when there is none.
const Rule* find_rule(std::size_t call) {
  for (const Rule& rule : rules) {
    if (rule.standing && applies(rule, call)) return &rule;
  }
  ++counts[call];
  ++counts[kAnyCall];
  for (const Rule& rule : rules) {
    if (!rule.standing && applies(rule, call)) return &rule;
  }
  return nullptr;
}

int index_of(std::string_view name, const char* const* names, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (name == names[i]) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

Fault decide(Call call, const std::function<std::string()>& place) {
  const int error = errno;
  Fault fault;
  std::uint64_t delay_ns = 0;
  {
    const std::lock_guard lock(mutex);
    if (paused) return fault;
    const auto index = static_cast<std::size_t>(call);
    const Rule* const rule = find_rule(index);
    if (rule == nullptr) return fault;
    fault = rule->fault;
    delay_ns = rule->delay_ns;
    if (!rule->standing && hits.size() < kHitsMax)
      hits.push_back(std::string(kCallNames[index]) + '\t' + place());
  }
  if (fault.effect == Effect::kDelay) pause(delay_ns);
  if (fault.effect == Effect::kSpin) spin(delay_ns);
  errno = error;
  return fault;
}

std::string place_of(int fd) {
  if (fd == AT_FDCWD) return ".";
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), path, sizeof path);
  return size < 0 ? link : std::string(path, static_cast<std::size_t>(size));
}

std::string place_of(int at, const char* path) {
  return path[0] == '/' ? std::string(path) : place_of(at) + '/' + path;
}

}  // namespace kvfs::testing

// What tests call. No header: they find these by name in the built module.
#define KVFS_FAULTS_API extern "C" __attribute__((visibility("default")))

using namespace kvfs::testing;

// Forget all rules, counts and hits; pausing stays as it is.
KVFS_FAULTS_API void kvfs_faults_reset() {
  const std::lock_guard lock(mutex);
  rules.clear();
  hits.clear();
  std::memset(counts, 0, sizeof counts);
}

// While paused (as it is at the start) calls are neither counted nor do they fail.
KVFS_FAULTS_API void kvfs_faults_pause(int now) {
  const std::lock_guard lock(mutex);
  paused = now != 0;
}

// Add a rule for calls number `first` to `first` + `times` - 1 of that name, or of all names ("any"); with
// `first` 0 for all of them from now on, uncounted. False if a name is unknown.
KVFS_FAULTS_API int kvfs_faults_add(const char* call, std::uint64_t first, std::uint64_t times,
                                    const char* effect, int error, std::uint64_t bytes,
                                    std::uint64_t delay_ns) {
  Rule rule;
  const bool any = std::string_view(call) == "any";
  const int call_index = any ? static_cast<int>(kAnyCall) : index_of(call, kCallNames, kCalls);
  const int effect_index = index_of(effect, kEffectNames, std::size(kEffectNames));
  if (call_index < 0 || effect_index < 0) return 0;
  rule.call = static_cast<std::size_t>(call_index);
  rule.first = first;
  rule.times = times;
  rule.fault = {static_cast<Effect>(effect_index), error, bytes};
  rule.delay_ns = delay_ns;
  rule.standing = first == 0;
  const std::lock_guard lock(mutex);
  rules.push_back(rule);
  return 1;
}

// The name of a call, by number from 0; nullptr after the last one.
KVFS_FAULTS_API const char* kvfs_faults_name(int call) {
  return call >= 0 && static_cast<std::size_t>(call) < kCalls ? kCallNames[call] : nullptr;
}

KVFS_FAULTS_API std::uint64_t kvfs_faults_count(int call) {
  const std::lock_guard lock(mutex);
  return counts[call];
}

KVFS_FAULTS_API std::uint64_t kvfs_faults_hits() {
  const std::lock_guard lock(mutex);
  return hits.size();
}

// Copy a hit, "call<TAB>path", as a C string of at most `size` bytes.
KVFS_FAULTS_API void kvfs_faults_hit(std::uint64_t number, char* text, std::uint64_t size) {
  const std::lock_guard lock(mutex);
  const std::string hit = number < hits.size() ? hits[number] : std::string();
  const std::size_t length = std::min<std::size_t>(hit.size(), size - 1);
  std::memcpy(text, hit.data(), length);
  text[length] = 0;
}
