// The engine as Python holds it, with the primary tier's buffer pinned for its life.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/engine.hpp"
#include "python/arguments.hpp"

namespace kvfs::python {

// The constructor's arguments as they come; docs/engine.md says what they may be.
struct EngineArguments {
  nb::handle base_path;
  nb::handle buffer;
  std::int64_t n_read_threads;
  std::int64_t n_write_threads;
  bool use_o_direct;
  const std::string& io_engine;
  std::int64_t max_inflight_read_bytes;
  std::int64_t max_inflight_write_bytes;
  std::optional<std::int64_t> max_queued_store_bytes;
  const std::string& index_mode;
  nb::handle negative_ttl_s;
  const std::string& checksum;
  std::int64_t file_mode;
  std::int64_t dir_mode;
  std::optional<std::int64_t> capacity_bytes;
  std::optional<std::int64_t> min_free_bytes;
  nb::handle space_root;
};

// Owns the engine and the pin on its buffer. Methods are called with the GIL; those that may block release
// it.
class BoundEngine {
 public:
  explicit BoundEngine(const EngineArguments& arguments);
  ~BoundEngine();
  BoundEngine(const BoundEngine&) = delete;
  BoundEngine& operator=(const BoundEngine&) = delete;

  void submit(std::int64_t job_id, jobs::JobKind kind, nb::bytes keys, std::int64_t key_size_bytes,
              std::vector<std::int64_t> chunk_ids);
  std::vector<jobs::Completion> poll();
  nb::list take_evicted();
  bool drain(std::optional<double> timeout_s);
  std::size_t close(std::optional<double> timeout_s);

  int lookup(nb::bytes key);
  jobs::Answer ask(std::string_view key, double waiting_since_s);
  void ask_unseen(std::string_view key);
  // Of what may be no key. Never throws.
  void prefetch(std::string_view key) const {
    if (is_key_size(key.size())) engine_->prefetch(key);
  }
  [[nodiscard]] std::uint64_t losses() const;
  // Of keys that have been checked.
  [[nodiscard]] std::size_t present_prefix(std::string_view packed, std::size_t key_size_bytes) const {
    return engine_->present_prefix(packed, key_size_bytes);
  }
  std::size_t lookup_prefix(nb::bytes keys, std::int64_t key_size_bytes);
  void probe(nb::bytes key);
  void submit_probes();
  void touch(nb::bytes keys, std::int64_t key_size_bytes);

  [[nodiscard]] const char* io_engine() const;
  [[nodiscard]] std::string io_engine_reason() const;
  nb::dict stats();

 private:
  void check_process() const;

  std::unique_ptr<BufferView> buffer_;
  std::unique_ptr<jobs::Engine> engine_;
};

}  // namespace kvfs::python
