// Names and scheduling of threads.
#include "jobs/threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

namespace kvfs::jobs {

namespace {

// struct sched_attr of Linux, which glibc 2.36 does not declare.
struct SchedulingAttributes {
  std::uint32_t size = sizeof(SchedulingAttributes);
  std::uint32_t policy = SCHED_BATCH;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = 0;
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};

std::atomic<unsigned> fork_count{0};

}  // namespace

unsigned forks() {
  static const int kRegistered = ::pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
  (void)kRegistered;
  return fork_count.load(std::memory_order_relaxed);
}

void name_thread(std::thread& thread, const std::string& name) {
  (void)::pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
}

void yield_to_others() {
  constexpr std::uint64_t kSliceNs = 100'000'000;
  SchedulingAttributes attributes;
  attributes.nice = ::getpriority(PRIO_PROCESS, 0);
  attributes.runtime_ns = kSliceNs;
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0U);
}

}  // namespace kvfs::jobs
