// The engine as Python holds it.
#include "python/bound_engine.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "python/errors.hpp"

namespace kvfs::python {

namespace {

constexpr std::int64_t kThreadsMax = 1024;

std::size_t thread_count(std::int64_t count, const char* name) {
  if (count < 1 || count > kThreadsMax) {
    throw nb::value_error((std::string(name) + " must be between 1 and " + std::to_string(kThreadsMax) +
                           ", got " + std::to_string(count))
                              .c_str());
  }
  return static_cast<std::size_t>(count);
}

std::uint64_t byte_limit(std::int64_t bytes, const char* name) {
  if (bytes < 1)
    throw nb::value_error((std::string(name) + " must be at least 1, got " + std::to_string(bytes)).c_str());
  return static_cast<std::uint64_t>(bytes);
}

jobs::PrimaryBuffer primary_buffer(const BufferView& view) {
  const Py_buffer& raw = view.raw();
  if (raw.ndim != 2 || raw.itemsize != 1 || raw.shape[0] < 1 || raw.shape[1] < 1) {
    std::string shape;
    for (int i = 0; i < raw.ndim; ++i) shape += (i > 0 ? ", " : "") + std::to_string(raw.shape[i]);
    throw nb::value_error(
        ("buffer must have shape (num_chunks, chunk_size_bytes) with one byte an element, got shape (" +
         shape + ") with " + std::to_string(raw.itemsize) + " bytes an element")
            .c_str());
  }
  return {view.bytes().data(), static_cast<std::size_t>(raw.shape[0]),
          static_cast<std::size_t>(raw.shape[1])};
}

jobs::IoEngine io_engine_named(const std::string& name) {
  if (name == "auto") return jobs::IoEngine::kAuto;
  if (name == "uring") return jobs::IoEngine::kUring;
  if (name == "psync") return jobs::IoEngine::kPsync;
  throw nb::value_error(("io_engine must be 'auto', 'uring' or 'psync', got '" + name + "'").c_str());
}

fs::Sharing sharing_named(const std::string& name) {
  if (name == "auto") return fs::Sharing::kAuto;
  if (name == "owner") return fs::Sharing::kOwner;
  if (name == "shared") return fs::Sharing::kShared;
  throw nb::value_error(("index_mode must be 'auto', 'owner' or 'shared', got '" + name + "'").c_str());
}

jobs::Clock::duration duration_of(double seconds) {
  constexpr double kLongest = 1e9;
  return std::chrono::duration_cast<jobs::Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kLongest)));
}

layouts::Checksum checksum_named(const std::string& name) {
  if (name == "auto") return layouts::Checksum::kAuto;
  if (name == "require") return layouts::Checksum::kRequire;
  if (name == "off") return layouts::Checksum::kOff;
  throw nb::value_error(("checksum must be one of auto, require, off, got '" + name + "'").c_str());
}

// Less than this would hold no chunk, or evict each for the next.
void check_capacity(std::uint64_t capacity_bytes, std::size_t chunk_size_bytes) {
  constexpr std::uint64_t kChunksMin = 4;
  const std::uint64_t least = kChunksMin * (chunk_size_bytes + 2 * 4096);
  if (capacity_bytes > 0 && capacity_bytes < least) {
    throw nb::value_error(("capacity_bytes must be at least " + std::to_string(least) + " for chunks of " +
                           std::to_string(chunk_size_bytes) + " bytes, got " + std::to_string(capacity_bytes))
                              .c_str());
  }
}

std::string octal(std::int64_t mode) {
  std::ostringstream text;
  text << "0o" << std::oct << mode;
  return text.str();
}

mode_t mode_with(std::int64_t mode, mode_t needed, const char* name) {
  if (mode < 0 || mode > 0777 || (static_cast<mode_t>(mode) & needed) != needed) {
    throw nb::value_error((std::string(name) + " must be permission bits between " + octal(needed) +
                           " and 0o777 " + "that have all bits of " + octal(needed) + ", got " +
                           (mode < 0 ? std::to_string(mode) : octal(mode)))
                              .c_str());
  }
  return static_cast<mode_t>(mode);
}

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

}  // namespace

BoundEngine::BoundEngine(const EngineArguments& arguments) {
  jobs::EngineOptions options;
  options.base_path = path(arguments.base_path, {"base_path"});
  if (options.base_path.empty())
    throw nb::value_error("base_path must not be empty; give the namespace's directory");
  options.n_threads = thread_count(arguments.n_read_threads, "n_read_threads") +
                      thread_count(arguments.n_write_threads, "n_write_threads");
  options.use_o_direct = arguments.use_o_direct;
  options.io_engine = io_engine_named(arguments.io_engine);
  options.max_inflight_read_bytes = byte_limit(arguments.max_inflight_read_bytes, "max_inflight_read_bytes");
  options.max_inflight_write_bytes =
      byte_limit(arguments.max_inflight_write_bytes, "max_inflight_write_bytes");
  options.sharing = sharing_named(arguments.index_mode);
  options.negative_ttl_s = seconds(arguments.negative_ttl_s, "negative_ttl_s");
  options.checksum = checksum_named(arguments.checksum);
  options.modes.file = mode_with(arguments.file_mode, 0600, "file_mode");
  options.modes.directory = mode_with(arguments.dir_mode, 0700, "dir_mode");
  if (arguments.capacity_bytes)
    options.limits.capacity_bytes = byte_limit(*arguments.capacity_bytes, "capacity_bytes");
  if (arguments.min_free_bytes)
    options.limits.min_free_bytes = byte_limit(*arguments.min_free_bytes, "min_free_bytes");
  options.space_root =
      arguments.space_root.is_none() ? options.base_path : path(arguments.space_root, {"space_root"});
  const std::string base = options.base_path;
  auto view = std::make_unique<BufferView>(arguments.buffer, Access::kWrite, ArgumentName{"buffer"});
  const jobs::PrimaryBuffer memory = primary_buffer(*view);
  check_capacity(options.limits.capacity_bytes, memory.chunk_size_bytes);
  options.max_queued_store_bytes =
      arguments.max_queued_store_bytes
          ? byte_limit(*arguments.max_queued_store_bytes, "max_queued_store_bytes")
          : std::numeric_limits<std::uint64_t>::max();
  const bool options_wanted_owner = options.sharing == fs::Sharing::kOwner;
  Status opened;
  {
    const nb::gil_scoped_release unlocked;
    opened = jobs::Engine::open(std::move(options), memory, engine_);
  }
  if (opened.code == EBUSY && options_wanted_owner) raise_os_error(opened, base + "/kvfs.lock", 0);
  if (!opened.ok()) raise_os_error(opened, base, 0);
  buffer_ = std::move(view);
}

BoundEngine::~BoundEngine() {
  if (engine_ == nullptr) return;
  if (!engine_->in_owner_process()) {
    (void)engine_.release();
    (void)buffer_.release();
    return;
  }
  constexpr double kPatienceS = 10;
  try {
    if (close(kPatienceS) == 0) return;
  } catch (...) {
    // There is nobody to tell.
  }
  // Its threads hang in the file system, and use both when they come back.
  (void)engine_.release();
  (void)buffer_.release();
}

void BoundEngine::submit(std::int64_t job_id, jobs::JobKind kind, nb::bytes keys, std::int64_t key_size_bytes,
                         std::vector<std::int64_t> chunk_ids) {
  check_process();
  jobs::PackedKeys packed{std::string(packed_view(keys, key_size_bytes)),
                          static_cast<std::size_t>(key_size_bytes)};
  if (kind != jobs::JobKind::kLookup)
    check_same_length(packed.count(), "keys", chunk_ids.size(), "chunk_ids");
  if (!engine_->submit(job_id, kind, std::move(packed), std::move(chunk_ids))) {
    throw std::runtime_error("the engine is closed; make a new one to submit jobs");
  }
}

std::vector<jobs::Completion> BoundEngine::poll() {
  check_process();
  return engine_->poll();
}

nb::list BoundEngine::take_evicted() {
  check_process();
  nb::list keys;
  for (const std::string& key : engine_->take_evicted()) keys.append(nb::bytes(key.data(), key.size()));
  return keys;
}

bool BoundEngine::drain(std::optional<double> timeout_s) {
  check_process();
  if (timeout_s && !(*timeout_s >= 0))
    throw nb::value_error("timeout_s must be None or a number of seconds from 0");
  using Clock = jobs::Clock;
  // Wake up now and then, so that Ctrl-C ends the wait.
  constexpr auto kSlice = std::chrono::milliseconds(100);
  const std::optional<Clock::time_point> deadline =
      timeout_s ? std::optional(Clock::now() + duration_of(*timeout_s)) : std::nullopt;
  while (true) {
    Clock::duration slice = kSlice;
    if (deadline) slice = std::clamp(*deadline - Clock::now(), Clock::duration::zero(), slice);
    {
      const nb::gil_scoped_release unlocked;
      if (engine_->drain(slice)) return true;
    }
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    if (deadline && Clock::now() >= *deadline) return false;
  }
}

std::size_t BoundEngine::close(std::optional<double> timeout_s) {
  if (timeout_s && !(*timeout_s >= 0))
    throw nb::value_error("timeout_s must be None or a number of seconds from 0");
  if (!engine_->in_owner_process()) return 0;
  std::optional<jobs::Clock::duration> patience;
  if (timeout_s) patience = duration_of(*timeout_s);
  std::size_t unfinished = 0;
  {
    const nb::gil_scoped_release unlocked;
    unfinished = engine_->close(patience);
  }
  if (unfinished == 0) buffer_.reset();
  return unfinished;
}

const char* BoundEngine::io_engine() const { return engine_->uring_status().ok() ? "uring" : "psync"; }

std::string BoundEngine::io_engine_reason() const {
  const Status& status = engine_->uring_status();
  if (status.ok()) return "io_uring works here";
  if (status.code == ECANCELED) return "io_engine is set to 'psync'";
  return std::string(status.step) + " failed: " + std::generic_category().message(status.code);
}

nb::dict BoundEngine::stats() {
  check_process();
  const jobs::EngineStats stats = engine_->stats();
  nb::dict result;
  result["direct_fallbacks"] = stats.direct_fallbacks;
  result["duplicate_stores"] = stats.duplicate_stores;
  result["healed_files"] = stats.healed_files;
  result["removed_files"] = stats.removed_files;
  result["shed_stores"] = stats.shed_stores;
  result["capacity_sheds"] = stats.space.sheds;
  result["paused_stores"] = stats.paused_stores;
  result["evicted_chunks"] = stats.evicted.chunks;
  result["evicted_bytes"] = stats.evicted.bytes;
  result["evict_failures"] = stats.evicted.failures;
  result["used_bytes"] = stats.space.used_bytes;
  result["free_bytes"] = stats.space.free_bytes;
  result["space_counted"] = stats.space.counted;
  result["reclaimed_temporaries"] = stats.lookups.reclaimed_temporaries;
  result["seals"] = stats.seals;
  result["verified_loads"] = stats.verified_loads;
  result["unverified_loads"] = stats.unverified_loads;
  result["damaged_chunks"] = stats.damaged_chunks;
  result["peak_inflight_read_bytes"] = stats.peak_inflight_read_bytes;
  result["peak_inflight_write_bytes"] = stats.peak_inflight_write_bytes;
  result["inflight_jobs"] = stats.inflight_jobs;
  result["index_keys"] = stats.lookups.index_keys;
  result["index_bytes"] = stats.lookups.index_bytes;
  result["scanned_files"] = stats.lookups.scanned_files;
  result["scan_complete"] = stats.lookups.scan_complete;
  result["owner"] = stats.lookups.owner;
  result["pinned_chunks"] = stats.lookups.pinned_chunks;
  result["probes"] = stats.lookups.probes;
  result["checks"] = stats.lookups.checks;
  return result;
}

int BoundEngine::lookup(nb::bytes key) {
  check_process();
  check_key_size(key.size(), "key");
  return static_cast<int>(engine_->lookup(view_of(key)));
}

jobs::Answer BoundEngine::ask(std::string_view key, double waiting_since_s) {
  check_process();
  check_key_size(key.size(), "key");
  std::optional<index::Moment> since;
  // Infinity, as any time that is far away, is for nobody who waits.
  constexpr double kFarAway = 1e9;
  if (waiting_since_s >= 0 && waiting_since_s < kFarAway) since = index::moment_at(waiting_since_s);
  return engine_->ask(key, since);
}

void BoundEngine::ask_unseen(std::string_view key) {
  check_process();
  check_key_size(key.size(), "key");
  engine_->ask_unseen(key);
}

std::uint64_t BoundEngine::losses() const {
  check_process();
  return engine_->losses();
}

std::size_t BoundEngine::lookup_prefix(nb::bytes keys, std::int64_t key_size_bytes) {
  check_process();
  return engine_->present_prefix(packed_view(keys, key_size_bytes), static_cast<std::size_t>(key_size_bytes));
}

void BoundEngine::probe(nb::bytes key) {
  check_process();
  check_key_size(key.size(), "key");
  engine_->probe(view_of(key));
}

void BoundEngine::submit_probes() {
  check_process();
  engine_->submit_probes();
}

void BoundEngine::touch(nb::bytes keys, std::int64_t key_size_bytes) {
  check_process();
  engine_->touch(packed_view(keys, key_size_bytes), static_cast<std::size_t>(key_size_bytes));
}

void BoundEngine::check_process() const {
  if (!engine_->in_owner_process()) {
    throw std::runtime_error(
        "this engine belongs to the process that was forked; make a new one in this process");
  }
}

}  // namespace kvfs::python
