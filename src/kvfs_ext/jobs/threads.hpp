// What all of kvfs's own threads do when they begin.
#pragma once

#include <string>
#include <thread>

namespace kvfs::jobs {

// What debuggers and `top` call the thread; the kernel keeps 15 characters.
void name_thread(std::thread& thread, const std::string& name);

// Let the calling thread have its fair part of a CPU, and late rather than soon: it does not push aside a
// thread that runs when it wakes up (SCHED_BATCH), and since Linux 6.12 it is pushed aside by every thread
// that wakes up and asks for shorter slices, as all do that ask for none. One of those is vLLM's loop.
void yield_to_others();

// How many times this process was forked off by one that had used this before. Threads do not come along, so
// what has some compares. Costs a memory access, where getpid() is a system call.
[[nodiscard]] unsigned forks();

}  // namespace kvfs::jobs
