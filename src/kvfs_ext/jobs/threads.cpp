// Names and scheduling of threads.
#include "jobs/threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

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

// What debuggers and `top` call the thread; the kernel keeps 15 characters.
void name_thread(std::thread& thread, const std::string& name) {
  (void)::pthread_setname_np(thread.native_handle(), name.substr(0, 15).c_str());
}

}  // namespace

unsigned forks() {
  static const int kRegistered = ::pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
  (void)kRegistered;
  return fork_count.load(std::memory_order_relaxed);
}

std::thread Crew::start(const std::string& name, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    ++alive_;
  }
  const auto end = [this] {
    const std::lock_guard lock(mutex_);
    --alive_;
    // With the lock: whoever waits may destroy this as soon as it has it.
    ended_.notify_all();
  };
  // Signals are for the process's own threads; here they would interrupt system calls.
  sigset_t all;
  sigset_t before;
  (void)::sigfillset(&all);
  (void)::pthread_sigmask(SIG_SETMASK, &all, &before);
  const auto restore = [&before] { (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr); };
  try {
    std::thread thread([work = std::move(work), end] {
      work();
      end();
    });
    restore();
    name_thread(thread, name);
    return thread;
  } catch (...) {
    restore();
    end();
    throw;
  }
}

bool Crew::wait(std::optional<std::chrono::steady_clock::duration> patience) {
  std::unique_lock lock(mutex_);
  const auto none_alive = [this] { return alive_ == 0; };
  if (patience) return ended_.wait_for(lock, *patience, none_alive);
  ended_.wait(lock, none_alive);
  return true;
}

void yield_to_others() {
  constexpr std::uint64_t kSliceNs = 100'000'000;
  SchedulingAttributes attributes;
  attributes.nice = ::getpriority(PRIO_PROCESS, 0);
  attributes.runtime_ns = kSliceNs;
  (void)::syscall(SYS_sched_setattr, 0, &attributes, 0U);
}

}  // namespace kvfs::jobs
