// What all of kvfs's own threads do when they begin.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace kvfs::jobs {

// Let the calling thread have its fair part of a CPU, and late rather than soon: it does not push aside a
// thread that runs when it wakes up (SCHED_BATCH), and since Linux 6.12 it is pushed aside by every thread
// that wakes up and asks for shorter slices, as all do that ask for none. One of those is vLLM's loop.
void yield_to_others();

// The threads of one engine: started here, so that somebody can wait for their end for a limited time.
// Thread-safe.
class Crew {
 public:
  // A thread that runs `work` and is called `name`. Throws std::system_error where there is none. Its owner
  // joins it.
  [[nodiscard]] std::thread start(const std::string& name, std::function<void()> work);
  // Whether all have ended, before `patience` is over; without one, waits until they have.
  [[nodiscard]] bool wait(std::optional<std::chrono::steady_clock::duration> patience);

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  std::size_t alive_ = 0;
};

// How many times this process was forked off by one that had used this before. Threads do not come along, so
// what has some compares. Costs a memory access, where getpid() is a system call.
[[nodiscard]] unsigned forks();

}  // namespace kvfs::jobs
