// The `files` layout: paths of chunks, and storing, loading and looking one up.
#include "layouts/files.hpp"

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvfs::layouts {

namespace {

constexpr int kParentTries = 16;
constexpr char kHexDigits[] = "0123456789abcdef";

// Of a temporary's name: what tells it from others' temporaries, then the writer's number, the process and
// the count.
constexpr std::string_view kTemporaryMark = "_kvfs";
constexpr int kNumberDigits = 16;
constexpr std::size_t kTailDigits = kNumberDigits + 8 + 8;

void append_hex(std::string& text, std::uint64_t number, int digits) {
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) text += kHexDigits[(number >> shift) & 0xf];
}

void count(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

// The errno that says why `entry` is no chunk of this size; 0 if it is one.
int mismatch(const fs::Entry& entry, std::size_t size_bytes) {
  switch (entry.kind) {
    case fs::Kind::kAbsent:
      return ENOENT;
    case fs::Kind::kDirectory:
      return EISDIR;
    case fs::Kind::kLink:
      return ELOOP;
    case fs::Kind::kOther:
      return EBADMSG;
    case fs::Kind::kRegular:
      return entry.size_bytes == size_bytes ? 0 : EBADMSG;
  }
  return EBADMSG;
}

// Remove the file that was proven to be wrong, and no other: one that another writer has put in its place
// goes back there. In between the chunk is a miss, which a kill just then makes last.
void remove_proven(FilesContext& context, const ChunkName& chunk, const fs::Entry& proven) {
  const int at = context.directory.at();
  const auto is_it = [&proven](const fs::Entry& entry) {
    return entry.kind == fs::Kind::kRegular && entry.device == proven.device && entry.inode == proven.inode;
  };
  fs::Entry current;
  if (!fs::inspect(at, chunk.path, current).ok() || !is_it(current)) return;
  const std::string aside = temporary_path(chunk.path);
  if (!fs::move(at, chunk.path, aside, fs::Replace::kNever).ok()) return;
  const bool right_one = fs::inspect(at, aside, current).ok() && is_it(current);
  if (!right_one && fs::move(at, aside, chunk.path, fs::Replace::kNever).ok()) return;
  if (!fs::remove(at, aside).ok() || !right_one) return;
  count(context.counters.removed_files);
  if (context.on_removed) context.on_removed(chunk.path, counted_bytes(current.size_bytes));
}

bool is_sealed(FilesContext& context, const std::string& path) {
  fs::File file;
  fs::DirectPolicy buffered(false);
  return fs::open_existing(context.directory.at(), path, {}, buffered, file).ok() &&
         Seals::is_sealed(file.fd);
}

bool make_parent(FilesContext& context, const std::string& path) {
  const std::string parent = path.substr(0, path.find_last_of('/'));
  const mode_t mode = context.directory.modes().directory;
  bool made = false;
  const Status status = fs::make_directories(context.directory.at(), parent, mode, made);
  if (made && context.on_directory_made) context.on_directory_made();
  return status.ok();
}

// Whether the chunk is at `path` already; a failure where no store can go. `entry` is what lies there.
Status find_duplicate(FilesContext& context, const std::string& path, std::size_t size_bytes, bool& is_there,
                      fs::Entry& entry) {
  if (const Status seen = fs::inspect_beneath(context.directory.at(), path, entry); !seen.ok()) return seen;
  is_there = mismatch(entry, size_bytes) == 0 && (!context.seals.required() || is_sealed(context, path));
  if (is_there) count(context.counters.duplicate_stores);
  return entry.kind == fs::Kind::kDirectory ? Status::failure(EISDIR, "store") : Status::success();
}

// Move the whole temporary into place; drop it when another writer was first.
Status publish_temporary(FilesContext& context, const std::string& temporary, const std::string& path,
                         std::size_t size_bytes, bool& is_there) {
  const int at = context.directory.at();
  const Status published = fs::move(at, temporary, path, fs::Replace::kNever);
  if (published.code != EEXIST) return published;
  fs::Entry wrong;
  if (const Status found = find_duplicate(context, path, size_bytes, is_there, wrong); !found.ok())
    return found;
  if (is_there) return fs::remove(at, temporary);
  const Status healed = fs::move(at, temporary, path, fs::Replace::kAlways);
  if (!healed.ok()) return healed;
  count(context.counters.healed_files);
  // Not more than a chunk: another writer may have been quicker, and then that is what was replaced.
  if (context.on_removed && wrong.kind == fs::Kind::kRegular)
    context.on_removed(path, counted_bytes(std::min<std::uint64_t>(wrong.size_bytes, size_bytes)));
  return healed;
}

// Give the whole nameless file its name; a wrong one that has it is replaced through a temporary.
Status publish_nameless(FilesContext& context, const fs::File& file, const std::string& path,
                        std::size_t size_bytes, bool& is_there) {
  const int at = context.directory.at();
  Status published = fs::link_file(file.fd, at, path, context.publish);
  // Its directory was empty, and removed after an eviction; perhaps once more.
  for (int tries = 0; published.code == ENOENT && tries < kParentTries && make_parent(context, path); ++tries)
    published = fs::link_file(file.fd, at, path, context.publish);
  if (published.code != EEXIST) return published;
  const std::string temporary = temporary_path(path);
  if (const Status linked = fs::link_file(file.fd, at, temporary, context.publish); !linked.ok())
    return linked;
  const Status status = publish_temporary(context, temporary, path, size_bytes, is_there);
  if (!status.ok()) (void)fs::remove(at, temporary);
  return status;
}

}  // namespace

std::string chunk_path(std::string_view key) {
  const std::string_view hash = key.substr(0, key.size() - kGroupIndexBytes);
  std::uint32_t group = 0;
  for (const char byte : key.substr(hash.size())) group = group << 8 | static_cast<unsigned char>(byte);
  std::string hex;
  hex.reserve(2 * hash.size());
  for (const char byte : hash) append_hex(hex, static_cast<unsigned char>(byte), 2);

  std::string path;
  path.reserve(hex.size() + 32);
  path.append(hex, 0, 3).append("/");
  // A hash of one byte has no second level's digits; vLLM's slicing then leaves them empty.
  if (hex.size() > 3) path.append(hex, 3, 2);
  path.append("_g").append(std::to_string(group)).append("/").append(hex).append(".bin");
  return path;
}

std::uint64_t writer_number() {
  static const std::uint64_t kNumber = [] {
    std::uint64_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) {
      struct timespec now;
      ::clock_gettime(CLOCK_REALTIME, &now);
      number = static_cast<std::uint64_t>(now.tv_nsec) << 32 ^ static_cast<std::uint64_t>(now.tv_sec);
    }
    return number;
  }();
  return kNumber;
}

std::optional<std::uint64_t> writer_of(std::string_view temporary) {
  constexpr std::string_view kSuffix = ".tmp";
  if (!temporary.ends_with(kSuffix) || temporary.size() < kTailDigits + kSuffix.size()) return std::nullopt;
  temporary.remove_suffix(kSuffix.size());
  const std::string_view tail = temporary.substr(temporary.size() - kTailDigits);
  if (!temporary.substr(0, temporary.size() - kTailDigits).ends_with(kTemporaryMark)) return std::nullopt;
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < tail.size(); ++i) {
    const std::size_t digit = std::string_view(kHexDigits).find(tail[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    if (i < kNumberDigits) number = number << 4 | digit;
  }
  return number;
}

std::string temporary_path(std::string_view path) {
  static std::atomic<std::uint64_t> counter{0};
  std::string temporary(path);
  temporary += kTemporaryMark;
  // A fork copies the seed and the counter; the process id tells the copies apart.
  append_hex(temporary, writer_number(), kNumberDigits);
  append_hex(temporary, static_cast<std::uint64_t>(::getpid()), 8);
  append_hex(temporary, counter.fetch_add(1, std::memory_order_relaxed), 8);
  return temporary += ".tmp";
}

bool remove_chunk(FilesContext& context, const std::string& path, Status& status, std::uint64_t& bytes) {
  const int at = context.directory.at();
  fs::Entry entry;
  status = fs::inspect_beneath(at, path, entry);
  if (status.ok() && entry.kind == fs::Kind::kLink) status = Status::failure(ELOOP, "unlink");
  bytes = counted_bytes(entry.size_bytes);
  // Other processes may be evicting it, too: who has removed it gives its room back.
  bool was_there = false;
  if (status.ok()) status = fs::remove(at, path, was_there);
  return was_there;
}

bool prune(FilesContext& context, const std::string& path) {
  return fs::remove_empty_directory(context.directory.at(), path.substr(0, path.find_last_of('/')));
}

std::string temporary_for(const FilesContext& context, const std::string& path) {
  return context.publish == fs::Publish::kRename ? temporary_path(path) : std::string();
}

Status store_file(FilesContext& context, std::string temporary, const ChunkName& chunk,
                  std::span<const std::byte> bytes, std::size_t& moved) {
  moved = 0;
  Unpublished unpublished;
  bool is_there = false;
  const Status begun = begin_store(context, std::move(temporary), chunk, bytes, unpublished, is_there);
  if (!begun.ok() || is_there) return begun;
  const Status written = fs::write_all(unpublished.file, bytes, context.direct);
  const Status ended = end_store(context, std::move(unpublished), chunk, bytes, written, is_there);
  if (ended.ok() && !is_there) moved = bytes.size();
  return ended;
}

Status begin_store(FilesContext& context, std::string temporary, const ChunkName& chunk,
                   std::span<const std::byte> bytes, Unpublished& unpublished, bool& is_there) {
  fs::Entry entry;
  const Status found = find_duplicate(context, chunk.path, bytes.size(), is_there, entry);
  if (!found.ok() || is_there) return found;
  unpublished.temporary = std::move(temporary);
  const bool nameless = unpublished.temporary.empty();
  const auto create = [&] {
    return fs::create_exclusive(context.directory.at(), nameless ? chunk.path : unpublished.temporary,
                                nameless ? fs::Naming::kNameless : fs::Naming::kNamed,
                                context.directory.modes(), bytes, context.direct, unpublished.file);
  };
  const std::uint64_t restorations = context.directory.restorations();
  Status created = create();
  if (created.code == ENOENT && context.directory.restore_if_removed(restorations)) created = create();
  for (unsigned made = 0; context.on_directory_made && made < unpublished.file.parents_made; ++made)
    context.on_directory_made();
  return created;
}

Status end_store(FilesContext& context, Unpublished unpublished, const ChunkName& chunk,
                 std::span<const std::byte> bytes, const Status& written, bool& is_there) {
  Status status = written;
  if (status.ok()) status = context.seals.set(unpublished.file.fd, chunk.key, bytes);
  if (unpublished.temporary.empty()) {
    return status.ok() ? publish_nameless(context, unpublished.file, chunk.path, bytes.size(), is_there)
                       : status;
  }
  if (const Status closed = unpublished.file.fd.close(); status.ok()) status = closed;
  if (status.ok())
    status = publish_temporary(context, unpublished.temporary, chunk.path, bytes.size(), is_there);
  if (!status.ok()) (void)fs::remove(context.directory.at(), unpublished.temporary);
  return status;
}

Status begin_load(FilesContext& context, const ChunkName& chunk, std::span<std::byte> bytes, fs::File& file) {
  const auto open = [&] {
    return fs::open_existing(context.directory.at(), chunk.path, bytes, context.direct, file);
  };
  const std::uint64_t restorations = context.directory.restorations();
  Status opened = open();
  if (opened.code == ENOENT && context.directory.restore_if_removed(restorations)) opened = open();
  if (!opened.ok()) return opened;
  fs::Entry entry;
  if (const Status seen = fs::inspect(file.fd, entry); !seen.ok()) return seen;
  const int wrong = mismatch(entry, bytes.size());
  if (wrong == 0) return Status::success();
  if (entry.kind == fs::Kind::kRegular && entry.size_bytes < bytes.size())
    remove_proven(context, chunk, entry);
  return Status::failure(wrong, "load");
}

Status end_load(FilesContext& context, const ChunkName& chunk, const fs::File& file,
                std::span<std::byte> bytes, std::size_t moved) {
  fs::Entry entry;
  if (moved == bytes.size()) {
    const Status verified = context.seals.verify(file.fd, chunk.key, bytes);
    if (verified.code != EBADMSG) return verified;
    if (fs::inspect(file.fd, entry).ok()) remove_proven(context, chunk, entry);
    return verified;
  }
  // It was cut while we read. Only the size can prove that; a short answer alone proves nothing.
  if (const Status seen = fs::inspect(file.fd, entry); !seen.ok()) return seen;
  if (entry.size_bytes < bytes.size()) remove_proven(context, chunk, entry);
  return Status::failure(EBADMSG, "load");
}

Status load_file(FilesContext& context, const ChunkName& chunk, std::span<std::byte> bytes,
                 std::size_t& moved) {
  moved = 0;
  fs::File file;
  if (const Status begun = begin_load(context, chunk, bytes, file); !begun.ok()) return begun;
  if (const Status read = fs::read_all(file, bytes, context.direct, moved); !read.ok()) return read;
  return end_load(context, chunk, file, bytes, moved);
}

Status lookup_file(const FilesContext& context, const std::string& path, std::size_t size_bytes) {
  fs::Entry entry;
  if (const Status seen = fs::inspect_beneath(context.directory.at(), path, entry); !seen.ok()) return seen;
  const int wrong = mismatch(entry, size_bytes);
  return wrong == 0 ? Status::success() : Status::failure(wrong, "lookup");
}

bool exists_file(const std::string& path) {
  fs::Entry entry;
  return fs::inspect(AT_FDCWD, path, entry).ok() && entry.kind == fs::Kind::kRegular && entry.size_bytes > 0;
}

}  // namespace kvfs::layouts
