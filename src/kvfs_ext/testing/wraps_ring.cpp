// Transfers through an io_uring, each with a fault when a test wants one.
#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "fs/ring.hpp"
#include "testing/faults.hpp"

using kvfs::fs::Ring;
using namespace kvfs::testing;

// As the compiler names Ring::queue and Ring::take; a method takes its object first. check_calls.py notices
// when a signature has changed and these are called no more.
#define KVFS_QUEUE(prefix) \
  prefix##_ZN4kvfs2fs4Ring5queueENS1_9DirectionEiSt4spanISt4byteLm18446744073709551615EEmm
#define KVFS_TAKE(prefix) prefix##_ZN4kvfs2fs4Ring4takeERNS1_10CompletionE

namespace {

using Transfer = std::pair<const Ring*, std::uint64_t>;

std::mutex mutex;
// Transfers in flight whose result will be another one.
std::map<Transfer, int> replaced;

void replace(const Ring* ring, std::uint64_t tag, int result) {
  const std::lock_guard lock(mutex);
  replaced[{ring, tag}] = result;
}

// A transfer that the kernel did not take in the end leaves its tag to another one.
void keep(const Ring* ring, std::uint64_t tag) {
  const std::lock_guard lock(mutex);
  replaced.erase({ring, tag});
}

}  // namespace

extern "C" {

// A descriptor that nobody has makes the kernel move nothing.
bool KVFS_QUEUE(__real_)(Ring* ring, Ring::Direction direction, int fd, std::span<std::byte> bytes,
                         std::uint64_t offset, std::uint64_t tag);
bool KVFS_QUEUE(__wrap_)(Ring* ring, Ring::Direction direction, int fd, std::span<std::byte> bytes,
                         std::uint64_t offset, std::uint64_t tag) {
  const Call call = direction == Ring::Direction::kRead ? Call::kRingRead : Call::kRingWrite;
  const Fault fault = decide(call, [=] { return place_of(fd); });
  const std::size_t wanted = fault.limit(bytes.size());
  const bool moves = !fault.stops() && wanted > 0;
  if (!KVFS_QUEUE(__real_)(ring, direction, moves ? fd : -1, bytes.first(moves ? wanted : bytes.size()),
                           offset, tag)) {
    return false;
  }
  if (fault.stops() || fault.is_late()) {
    replace(ring, tag, -fault.error);
  } else if (!moves) {
    replace(ring, tag, 0);
  } else {
    keep(ring, tag);
  }
  return true;
}

bool KVFS_TAKE(__real_)(Ring* ring, Ring::Completion* completion);
bool KVFS_TAKE(__wrap_)(Ring* ring, Ring::Completion* completion) {
  if (!KVFS_TAKE(__real_)(ring, completion)) return false;
  const std::lock_guard lock(mutex);
  const auto found = replaced.find({ring, completion->tag});
  if (found != replaced.end()) {
    completion->result = found->second;
    replaced.erase(found);
  }
  return true;
}

}  // extern "C"
