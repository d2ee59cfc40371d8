// The thread that counts what lies below the root, and removes chunks when there are too many.
// docs/capacity.md.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "jobs/lookups.hpp"
#include "jobs/space.hpp"
#include "jobs/threads.hpp"
#include "layouts/files.hpp"
#include "layouts/tree.hpp"

namespace kvfs::jobs {

struct EvictionStats {
  std::uint64_t chunks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t failures = 0;
};

// Thread-safe but for start() and stop(), which the engine calls one after the other.
class Evictor {
 public:
  // All of them outlive this.
  Evictor(layouts::FilesContext& context, Lookups& lookups, Space& space)
      : context_(context), lookups_(lookups), space_(space) {}
  ~Evictor() { stop(); }
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  // Begin; throws std::system_error without a thread.
  void start(Crew& crew);
  // Ask it to end, and wait until it has.
  void ask_to_stop();
  void stop();

  // There may be something to do. Never blocks.
  void wake_up();
  // A file is gone, of a chunk or a temporary, that counted as so much; its directory may be empty. Never
  // blocks.
  void removed(const std::string& path, std::uint64_t bytes);
  // The keys evicted since the last call, or the last of them.
  [[nodiscard]] std::vector<std::string> take_evicted();
  [[nodiscard]] EvictionStats stats() const { return {chunks_, bytes_, failures_}; }

 private:
  struct Removed {
    std::string path;
    std::uint64_t bytes = 0;
  };

  void run();
  void count();
  // Take what others have removed, to be given back or not.
  void take_removed(bool give_back);
  void evict();
  // Remove directories that evicting has left empty, until there is something more urgent.
  void prune();
  // Each returns how many bytes it has freed.
  std::uint64_t evict_unused(std::uint64_t bytes);
  // Where nothing that is known is left to evict: look what others have stored. False if that was just done.
  bool learn();
  std::uint64_t evict_own(std::uint64_t bytes);
  bool evict_one(const std::string& key);

  layouts::FilesContext& context_;
  Lookups& lookups_;
  Space& space_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> chunks_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> failures_{0};
  // Paths of evicted chunks whose directories may be empty.
  std::vector<std::string> unpruned_;
  // Chunks of unused namespaces, oldest last; and when to look for more.
  std::vector<layouts::UnusedChunk> unused_;
  std::chrono::steady_clock::time_point look_again_at_{};
  std::chrono::steady_clock::time_point learn_at_{};

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  bool woken_ = false;
  std::vector<Removed> removed_;
  std::deque<std::string> evicted_;
  std::thread thread_;
};

}  // namespace kvfs::jobs
