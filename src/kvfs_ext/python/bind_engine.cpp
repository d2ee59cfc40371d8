// Level 2: the engine, with the primary tier's buffer pinned for its life.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "jobs/engine.hpp"
#include "python/arguments.hpp"
#include "python/errors.hpp"
#include "python/module.hpp"

namespace kvfs::python {

namespace {

constexpr std::int64_t kThreadsMax = 1024;
constexpr std::int64_t kInflightReadBytes = std::int64_t{64} << 20;
constexpr std::int64_t kInflightWriteBytes = std::int64_t{16} << 20;

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

jobs::PackedKeys packed_keys(nb::bytes keys, std::int64_t key_size_bytes) {
  constexpr auto kMin = static_cast<std::int64_t>(layouts::kKeySizeMin);
  constexpr auto kMax = static_cast<std::int64_t>(layouts::kKeySizeMax);
  if (key_size_bytes < kMin || key_size_bytes > kMax) {
    throw nb::value_error(("key_size_bytes must be between " + std::to_string(kMin) + " and " +
                           std::to_string(kMax) + " (a hash and 4 bytes of group index), got " +
                           std::to_string(key_size_bytes))
                              .c_str());
  }
  const auto key_size = static_cast<std::size_t>(key_size_bytes);
  if (keys.size() % key_size != 0) {
    throw nb::value_error(("keys has " + std::to_string(keys.size()) +
                           " bytes, which is no multiple of key_size_bytes " + std::to_string(key_size_bytes))
                              .c_str());
  }
  return {std::string(keys.c_str(), keys.size()), key_size};
}

jobs::IoEngine io_engine_named(const std::string& name) {
  if (name == "auto") return jobs::IoEngine::kAuto;
  if (name == "uring") return jobs::IoEngine::kUring;
  if (name == "psync") return jobs::IoEngine::kPsync;
  throw nb::value_error(("io_engine must be 'auto', 'uring' or 'psync', got '" + name + "'").c_str());
}

const char* kind_name(jobs::JobKind kind) {
  switch (kind) {
    case jobs::JobKind::kLookup:
      return "lookup";
    case jobs::JobKind::kLoad:
      return "load";
    case jobs::JobKind::kStore:
      return "store";
  }
  return "unknown";
}

// Owns the engine and the pin on its buffer; methods are called with the GIL.
class BoundEngine {
 public:
  BoundEngine(nb::handle base_path, nb::handle buffer, std::int64_t n_read_threads,
              std::int64_t n_write_threads, bool use_o_direct, const std::string& io_engine,
              std::int64_t max_inflight_read_bytes, std::int64_t max_inflight_write_bytes,
              std::optional<std::int64_t> max_queued_store_bytes) {
    jobs::EngineOptions options;
    options.base_path = path(base_path, {"base_path"});
    if (options.base_path.empty())
      throw nb::value_error("base_path must not be empty; give the namespace's directory");
    options.n_threads =
        thread_count(n_read_threads, "n_read_threads") + thread_count(n_write_threads, "n_write_threads");
    options.use_o_direct = use_o_direct;
    options.io_engine = io_engine_named(io_engine);
    options.max_inflight_read_bytes = byte_limit(max_inflight_read_bytes, "max_inflight_read_bytes");
    options.max_inflight_write_bytes = byte_limit(max_inflight_write_bytes, "max_inflight_write_bytes");
    const std::string base = options.base_path;
    auto view = std::make_unique<BufferView>(buffer, Access::kWrite, ArgumentName{"buffer"});
    const jobs::PrimaryBuffer memory = primary_buffer(*view);
    options.max_queued_store_bytes = max_queued_store_bytes
                                         ? byte_limit(*max_queued_store_bytes, "max_queued_store_bytes")
                                         : std::numeric_limits<std::uint64_t>::max();
    Status opened;
    {
      const nb::gil_scoped_release unlocked;
      opened = jobs::Engine::open(std::move(options), memory, engine_);
    }
    if (!opened.ok()) raise_os_error(opened, base, 0);
    buffer_ = std::move(view);
  }

  ~BoundEngine() {
    if (engine_ == nullptr) return;
    if (!engine_->in_owner_process()) {
      (void)engine_.release();
      (void)buffer_.release();
      return;
    }
    close();
  }

  void submit(std::int64_t job_id, jobs::JobKind kind, nb::bytes keys, std::int64_t key_size_bytes,
              std::vector<std::int64_t> chunk_ids) {
    check_process();
    jobs::PackedKeys packed = packed_keys(keys, key_size_bytes);
    if (kind != jobs::JobKind::kLookup)
      check_same_length(packed.count(), "keys", chunk_ids.size(), "chunk_ids");
    if (!engine_->submit(job_id, kind, std::move(packed), std::move(chunk_ids))) {
      throw std::runtime_error("the engine is closed; make a new one to submit jobs");
    }
  }

  std::vector<jobs::Completion> poll() {
    check_process();
    return engine_->poll();
  }

  bool drain(std::optional<double> timeout_s) {
    check_process();
    if (timeout_s && !(*timeout_s >= 0))
      throw nb::value_error("timeout_s must be None or a number of seconds from 0");
    using Clock = jobs::Clock;
    // Wake up now and then, so that Ctrl-C ends the wait.
    constexpr auto kSlice = std::chrono::milliseconds(100);
    constexpr double kLongest = 1e9;
    const std::optional<Clock::time_point> deadline =
        timeout_s
            ? std::optional(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                               std::chrono::duration<double>(std::min(*timeout_s, kLongest))))
            : std::nullopt;
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

  void close() {
    if (!engine_->in_owner_process()) return;
    {
      const nb::gil_scoped_release unlocked;
      engine_->close();
    }
    buffer_.reset();
  }

  const char* io_engine() const { return engine_->uring_status().ok() ? "uring" : "psync"; }

  std::string io_engine_reason() const {
    const Status& status = engine_->uring_status();
    if (status.ok()) return "io_uring works here";
    if (status.code == ECANCELED) return "io_engine is set to 'psync'";
    return std::string(status.step) + " failed: " + std::generic_category().message(status.code);
  }

  nb::dict stats() {
    check_process();
    const jobs::EngineStats stats = engine_->stats();
    nb::dict result;
    result["direct_fallbacks"] = stats.direct_fallbacks;
    result["duplicate_stores"] = stats.duplicate_stores;
    result["healed_files"] = stats.healed_files;
    result["removed_files"] = stats.removed_files;
    result["shed_stores"] = stats.shed_stores;
    result["peak_inflight_read_bytes"] = stats.peak_inflight_read_bytes;
    result["peak_inflight_write_bytes"] = stats.peak_inflight_write_bytes;
    result["inflight_jobs"] = stats.inflight_jobs;
    return result;
  }

 private:
  void check_process() const {
    if (!engine_->in_owner_process()) {
      throw std::runtime_error(
          "this engine belongs to the process that was forked; make a new one in this process");
    }
  }

  std::unique_ptr<BufferView> buffer_;
  std::unique_ptr<jobs::Engine> engine_;
};

constexpr const char* kSubmitRaises = R"(

Raises:
    TypeError: ``keys`` is no bytes object, an id is no integer.
    ValueError: The packed length is no multiple of the key size, the key size is out of range, or the
        numbers of keys and ids differ. Nothing was enqueued.
    RuntimeError: The engine is closed, or belongs to the process that this one was forked from.)";

void bind_completion(nb::module_& module) {
  nb::class_<jobs::Completion>(module, "Completion",
                               "What became of one job. Every accepted job gets exactly one.")
      .def_ro("job_id", &jobs::Completion::job_id, "The id given at submission.")
      .def_prop_ro(
          "kind", [](const jobs::Completion& completion) { return kind_name(completion.kind); },
          "\"store\", \"load\" or \"lookup\".")
      .def_ro("outcomes", &jobs::Completion::outcomes, "One errno a key, in the job's order; 0 is success.")
      .def_ro("bytes_moved", &jobs::Completion::bytes_moved,
              "Bytes that crossed the file system; a duplicate store moves none.")
      .def_ro("queue_s", &jobs::Completion::queue_s, "Seconds from acceptance until the first op started.")
      .def_ro("transfer_s", &jobs::Completion::transfer_s,
              "Seconds from the start of the first op until the end of the last.")
      .def_ro("detail", &jobs::Completion::detail, "A sentence on the first failure by position, or \"\".");
}

}  // namespace

void bind_engine(nb::module_& module) {
  bind_completion(module);
  nb::class_<BoundEngine>(module, "Engine", "Threads that store, load and look up chunks of one namespace.")
      .def(
          nb::init<nb::handle, nb::handle, std::int64_t, std::int64_t, bool, const std::string&, std::int64_t,
                   std::int64_t, std::optional<std::int64_t>>(),
          nb::arg("base_path").none(), nb::arg("buffer").none(), nb::arg("n_read_threads"),
          nb::arg("n_write_threads"), nb::arg("use_o_direct").noconvert() = true,
          nb::arg("io_engine") = "auto", nb::arg("max_inflight_read_bytes") = kInflightReadBytes,
          nb::arg("max_inflight_write_bytes") = kInflightWriteBytes,
          nb::arg("max_queued_store_bytes").none() = nb::none(),
          nb::sig("def __init__(self, base_path: str, buffer: typing_extensions.Buffer, n_read_threads: int, "
                  "n_write_threads: int, use_o_direct: bool = True, io_engine: str = 'auto', "
                  "max_inflight_read_bytes: int = 67108864, max_inflight_write_bytes: int = 16777216, "
                  "max_queued_store_bytes: int | None = None) -> None"),
          R"(Start the threads and pin the buffer until close().

Args:
    base_path: The namespace's directory; made with its parents if it is missing.
    buffer: The primary tier, shape (num_chunks, chunk_size_bytes), one byte an element, writable,
        C-contiguous.
    n_read_threads: Threads, 1 to 1024, together with the next ones; each takes what is most urgent.
    n_write_threads: More threads, 1 to 1024.
    use_o_direct: Try to bypass the page cache; what refuses that goes through it.
    io_engine: "uring" for io_uring, "psync" for plain reads, "auto" for what a probe in the directory says.
    max_inflight_read_bytes: Loads that may be in flight at once; one chunk always may.
    max_inflight_write_bytes: The same for stores; an eighth of it while loads wait or run.
    max_queued_store_bytes: Stores that may wait; what comes on top is shed with EAGAIN. None sheds nothing.

Raises:
    TypeError: An argument of the wrong type.
    ValueError: A bad shape, a read-only buffer, an empty path, a count out of range, an unknown io_engine.
    OSError: The directory cannot be made, "uring" was asked for and does not work here, or the system has no
        room for that many threads.)")
      .def_prop_ro("io_engine", &BoundEngine::io_engine, "How chunks are loaded: \"uring\" or \"psync\".")
      .def_prop_ro("io_engine_reason", &BoundEngine::io_engine_reason, "Why it is that one, in a few words.")
      .def(
          "submit_store",
          [](BoundEngine& self, std::int64_t job_id, nb::bytes keys, std::int64_t key_size_bytes,
             nb::handle chunk_ids) {
            self.submit(job_id, jobs::JobKind::kStore, std::move(keys), key_size_bytes,
                        integer_list(chunk_ids, "chunk_ids"));
          },
          nb::arg("job_id"), nb::arg("keys"), nb::arg("key_size_bytes"), nb::arg("chunk_ids").none(),
          nb::sig("def submit_store(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: "
                  "list[int]) -> None"),
          (std::string("Enqueue the store of the chunks in these rows under these keys. Never blocks.") +
           kSubmitRaises)
              .c_str())
      .def(
          "submit_load",
          [](BoundEngine& self, std::int64_t job_id, nb::bytes keys, std::int64_t key_size_bytes,
             nb::handle chunk_ids) {
            self.submit(job_id, jobs::JobKind::kLoad, std::move(keys), key_size_bytes,
                        integer_list(chunk_ids, "chunk_ids"));
          },
          nb::arg("job_id"), nb::arg("keys"), nb::arg("key_size_bytes"), nb::arg("chunk_ids").none(),
          nb::sig("def submit_load(self, job_id: int, keys: bytes, key_size_bytes: int, chunk_ids: "
                  "list[int]) -> None"),
          (std::string("Enqueue the load of these keys into these rows. Never blocks.") + kSubmitRaises)
              .c_str())
      .def(
          "submit_lookup",
          [](BoundEngine& self, std::int64_t job_id, nb::bytes keys, std::int64_t key_size_bytes) {
            self.submit(job_id, jobs::JobKind::kLookup, std::move(keys), key_size_bytes, {});
          },
          nb::arg("job_id"), nb::arg("keys"), nb::arg("key_size_bytes"),
          (std::string("Enqueue the question which of these keys are on disk. Never blocks.") + kSubmitRaises)
              .c_str())
      .def("poll", &BoundEngine::poll,
           "Take the jobs that ended since the last call, each exactly once. Never blocks; works after "
           "close().")
      .def("drain", &BoundEngine::drain, nb::arg("timeout_s").none() = nb::none(),
           R"(Wait until no accepted job is unfinished. Blocks without the GIL.

Args:
    timeout_s: Seconds to wait at most; None waits as long as it takes.

Returns:
    Whether it got there in time.)")
      .def("close", &BoundEngine::close,
           R"(Cancel queued ops, wait for running ones, join the threads, release the buffer.

Blocks without the GIL until the last running operation has returned. The completions that remain can
still be polled. May be called again.)")
      .def("stats", &BoundEngine::stats, nb::sig("def stats(self) -> dict[str, int]"),
           "Count events since the start: direct_fallbacks, duplicate_stores, healed_files, removed_files, "
           "shed_stores; the peaks of what was in flight, peak_inflight_read_bytes and "
           "peak_inflight_write_bytes; and inflight_jobs now.");
}

}  // namespace kvfs::python
