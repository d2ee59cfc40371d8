// Level 2: the engine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/arguments.hpp"
#include "python/bound_engine.hpp"
#include "python/module.hpp"
#include "python/tier_lookup.hpp"

namespace kvfs::python {

namespace {

constexpr std::int64_t kInflightReadBytes = std::int64_t{64} << 20;
constexpr std::int64_t kInflightWriteBytes = std::int64_t{16} << 20;
constexpr std::int64_t kFileMode = 0600;
constexpr std::int64_t kDirMode = 0700;

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

constexpr const char* kSubmitRaises = R"(

Raises:
    TypeError: ``keys`` is no bytes object, an id is no integer.
    ValueError: The packed length is no multiple of the key size, the key size is out of range, or the
        numbers of keys and ids differ. Nothing was enqueued.
    RuntimeError: The engine is closed, or belongs to the process that this one was forked from.)";

constexpr const char* kKeyRaises = R"(

Raises:
    TypeError: No bytes.
    ValueError: A key of less than 5 or more than 255 bytes.
    RuntimeError: The engine belongs to the process that this one was forked from.)";

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
          "__init__",
          [](BoundEngine* self, nb::handle base_path, nb::handle buffer, std::int64_t n_read_threads,
             std::int64_t n_write_threads, bool use_o_direct, const std::string& io_engine,
             std::int64_t max_inflight_read_bytes, std::int64_t max_inflight_write_bytes,
             std::optional<std::int64_t> max_queued_store_bytes, const std::string& index_mode,
             nb::handle negative_ttl_s, const std::string& checksum, std::int64_t file_mode,
             std::int64_t dir_mode, std::optional<std::int64_t> capacity_bytes,
             std::optional<std::int64_t> min_free_bytes, nb::handle space_root) {
            new (self) BoundEngine({base_path, buffer, n_read_threads, n_write_threads, use_o_direct,
                                    io_engine, max_inflight_read_bytes, max_inflight_write_bytes,
                                    max_queued_store_bytes, index_mode, negative_ttl_s, checksum, file_mode,
                                    dir_mode, capacity_bytes, min_free_bytes, space_root});
          },
          nb::arg("base_path").none(), nb::arg("buffer").none(), nb::arg("n_read_threads"),
          nb::arg("n_write_threads"), nb::arg("use_o_direct").noconvert() = true,
          nb::arg("io_engine") = "auto", nb::arg("max_inflight_read_bytes") = kInflightReadBytes,
          nb::arg("max_inflight_write_bytes") = kInflightWriteBytes,
          nb::arg("max_queued_store_bytes").none() = nb::none(), nb::arg("index_mode") = "auto",
          nb::arg("negative_ttl_s").none() = 1.0, nb::arg("checksum") = "auto",
          nb::arg("file_mode") = kFileMode, nb::arg("dir_mode") = kDirMode,
          nb::arg("capacity_bytes").none() = nb::none(), nb::arg("min_free_bytes").none() = nb::none(),
          nb::arg("space_root").none() = nb::none(),
          nb::sig(
              "def __init__(self, base_path: str, buffer: typing_extensions.Buffer, n_read_threads: int, "
              "n_write_threads: int, use_o_direct: bool = True, io_engine: str = 'auto', "
              "max_inflight_read_bytes: int = 67108864, max_inflight_write_bytes: int = 16777216, "
              "max_queued_store_bytes: int | None = None, index_mode: str = 'auto', "
              "negative_ttl_s: float = 1.0, checksum: str = 'auto', file_mode: int = 0o600, dir_mode: int = "
              "0o700, capacity_bytes: int | None = None, min_free_bytes: int | None = None, space_root: "
              "str | None = None) -> None"),
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
    index_mode: "owner", "shared", or "auto": the owner if nobody else uses the namespace.
    negative_ttl_s: How long a shared engine believes that a chunk is absent.
    checksum: "auto" seals chunks and verifies what is sealed, where the file system can; "require" takes no
        others; "off" does neither.
    file_mode: Permissions of new files, whatever the umask is; at least 0o600.
    dir_mode: Permissions of new directories; at least 0o700.
    capacity_bytes: What all files below ``space_root`` may take on disk; chunks are evicted before it is
        reached. At least four chunks. None is no limit.
    min_free_bytes: What is to be left free on that file system. None is no limit.
    space_root: What the limits are for, made if it is missing; None is ``base_path``.

Raises:
    TypeError: An argument of the wrong type.
    ValueError: A bad shape, a read-only buffer, an empty path, a count or mode out of range, an unknown
        io_engine, index_mode or checksum.
    OSError: The directory cannot be made, "uring" was asked for and does not work here, the system has no
        room for that many threads, somebody else uses the namespace and "owner" was asked for (EBUSY), or
        the file system has no extended attributes and checksum is "require" (ENOTSUP).)")
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
      .def("take_evicted", &BoundEngine::take_evicted, nb::sig("def take_evicted(self) -> list[bytes]"),
           "Take the keys of chunks evicted since the last call, or the last 65,536 of them. Never blocks.")
      .def("lookup", &BoundEngine::lookup, nb::arg("key"),
           (std::string("Return what is known of a key: 0 miss, 1 hit, 2 retry, 3 expired. Never blocks.") +
            kKeyRaises)
               .c_str())
      .def(
          "ask",
          [](BoundEngine& engine, const nb::bytes& key, double waiting_since_s) {
            return static_cast<int>(engine.ask({key.c_str(), key.size()}, waiting_since_s).verdict);
          },
          nb::arg("key"), nb::arg("waiting_since_s") = std::numeric_limits<double>::infinity(),
          nb::sig("def ask(self, key: bytes, waiting_since_s: float = float('inf')) -> int"),
          (std::string("Return 0 for a miss, 1 for a hit, or 2, and then the disk is asked. Never blocks.\n\n"
                       "Args:\n    key: The key.\n    waiting_since_s: An absence that was found since then "
                       "(time.monotonic()) counts, however old it is.") +
           kKeyRaises)
              .c_str())
      .def(
          "tier_lookup",
          [](nb::handle_t<BoundEngine> self, nb::object miss, nb::object hit, nb::object retry) {
            return std::make_unique<TierLookup>(nb::borrow(self), std::move(miss), std::move(hit),
                                                std::move(retry));
          },
          nb::arg("miss"), nb::arg("hit"), nb::arg("retry"),
          nb::sig("def tier_lookup(self, miss: object, hit: object, retry: object) -> TierLookup"),
          R"(Return what answers the lookups of a tier. It keeps the engine.

Args:
    miss: Stands for a miss.
    hit: Stands for a hit.
    retry: Says that the disk is asked.)")
      .def("lookup_prefix", &BoundEngine::lookup_prefix, nb::arg("keys"), nb::arg("key_size_bytes"),
           "Count the packed keys that are hits, up to the first that is none. Never blocks; errors as in "
           "submit_lookup().")
      .def("probe", &BoundEngine::probe, nb::arg("key"),
           (std::string("Ask the disk about a key, unless that is being done. Never blocks.") + kKeyRaises)
               .c_str())
      .def("submit_probes", &BoundEngine::submit_probes,
           "Hand the questions that were collected to the threads. Never blocks.")
      .def("touch", &BoundEngine::touch, nb::arg("keys"), nb::arg("key_size_bytes"),
           "Note that the packed keys were used now, where they are present. Never blocks; errors as in "
           "submit_lookup().")
      .def("poll", &BoundEngine::poll,
           "Take the jobs that ended since the last call, each exactly once. Never blocks; works after "
           "close().")
      .def("drain", &BoundEngine::drain, nb::arg("timeout_s").none() = nb::none(),
           R"(Wait until no accepted job is unfinished. Blocks without the GIL.

Args:
    timeout_s: Seconds to wait at most; None waits as long as it takes.

Returns:
    Whether it got there in time.)")
      .def("close", &BoundEngine::close, nb::arg("timeout_s").none() = nb::none(),
           nb::sig("def close(self, timeout_s: float | None = None) -> int"),
           R"(Cancel queued ops, wait for running ones, join the threads, release the buffer.

Blocks without the GIL until the last running operation has returned, or until the time is over. The
completions that remain can still be polled. May be called again.

Args:
    timeout_s: How long to wait at most; None waits as long as it takes.

Returns:
    0, or how many jobs have not ended because the file system does not answer; then the buffer stays pinned.

Raises:
    ValueError: A negative time.)")
      .def("stats", &BoundEngine::stats, nb::sig("def stats(self) -> dict[str, int]"),
           "Count events since the start: direct_fallbacks, duplicate_stores, healed_files, removed_files, "
           "shed_stores; the peaks of what was in flight, peak_inflight_read_bytes and "
           "peak_inflight_write_bytes; inflight_jobs now; and of the index, see docs/lookup.md: index_keys, "
           "index_bytes, scanned_files, scan_complete, owner, pinned_chunks, probes, checks.");
}

}  // namespace kvfs::python
