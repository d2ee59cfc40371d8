"""`kvfs.json`: what the chunks of a namespace are, where vLLM's digest does not say it; docs/identity.md."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NoReturn

from kvfs import small_files
from kvfs.permissions import FILE_MODE

if TYPE_CHECKING:
    from kvfs.paths import Namespace

LAYOUT: Final = "files"
LAYOUT_VERSION: Final = 1
SIZE_MAX_BYTES: Final = 64 << 10
_TEXT_LENGTH_MAX: Final = 256
# Loads are possible where these are what a write gets.
_NOT_WRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})

_logger = logging.getLogger("kvfs")


def settle(namespace: Namespace, chunk_size_bytes: int, file_mode: int = FILE_MODE) -> Mapping[str, object]:
    """Compare what this engine stores with what the namespace holds, and record what nobody has yet.

    The namespace's directory is there already. Blocks. Engines that start at once agree: one of them writes,
    the others compare.

    Args:
        namespace: Where the chunks lie, and what is known of them.
        chunk_size_bytes: The size of each.
        file_mode: Permissions of the file, if it is made here.

    Returns:
        The fields by name, as they are on disk, or as they would be where nothing can be written.

    Raises:
        ValueError: The namespace holds other chunks, or its `kvfs.json` cannot be trusted.
        OSError: Its `kvfs.json` cannot be read, or the disk failed at writing it.
    """
    wanted: dict[str, object] = {
        "layout": LAYOUT,
        "layout_version": LAYOUT_VERSION,
        "chunk_size_bytes": chunk_size_bytes,
        "weights": None,
        **namespace.traits,
    }
    path = namespace.identity_path
    with small_files.locked(namespace.config_dir) as alone:
        found = _read(path)
        if found is None:
            found = _publish(path, wanted, file_mode)
        _compare(namespace, found, wanted)
        news = {name: here for name, here in wanted.items() if here is not None and found.get(name) is None}
        if news:
            found = _add(path, found, news, file_mode if alone else None)
    if wanted["weights"] is None and found.get("weights") is not None:
        _logger.warning(
            "%s says which weights its chunks come from (%s), but kvfs does not know those of this engine; "
            "make sure that they are the same",
            path,
            found["weights"],
        )
    return found


def chunk_size_of(view: memoryview) -> int:
    """Return how many bytes a row of a primary tier has, 0 if `view` is none."""
    match view.shape:
        case (_, size) if view.itemsize == 1 and view.c_contiguous and not view.readonly and view.nbytes:
            return size
    return 0


def parse(content: bytes) -> dict[str, object]:
    """Return the fields of a `kvfs.json`, those of a newer kvfs too.

    Raises:
        ValueError: Anything but a whole record, with the reason.
    """
    try:
        record = json.loads(content.decode(), parse_constant=_no_number, object_pairs_hook=_unique)
        if not isinstance(record, dict):
            raise ValueError(f"a {type(record).__name__} instead of an object")  # noqa: TRY004 - a bad content
        _check_types(record)
        # What cannot be written cannot be kept.
        _serialized(record)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return record


def _check_types(record: Mapping[str, object]) -> None:
    for name in ("layout_version", "chunk_size_bytes"):
        number = record.get(name)
        if type(number) is not int or number < 1:
            raise ValueError(f"{name} must be a positive integer, got {number!r:.80}")
        if name == "layout_version" and number > LAYOUT_VERSION:
            # The rest is the business of who knows that version.
            return
    layout = record.get("layout")
    if not _is_text(layout):
        raise ValueError(f"layout must be a string, got {layout!r:.80}")
    weights = record.get("weights")
    if weights is not None and not _is_text(weights):
        raise ValueError(f"weights must be a string or null, got {weights!r:.80}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _TEXT_LENGTH_MAX


def _read(path: str) -> dict[str, object] | None:
    try:
        content = small_files.read(path, SIZE_MAX_BYTES)
    except OSError as error:
        code = error.errno or errno.EIO
        raise OSError(
            code,
            f"cannot read what the kvfs namespace holds ({error.strerror or error}); it must be a regular "
            "file that this user can read: put that right, or use another root_dir",
            path,
        ) from error
    if content is None:
        return None
    try:
        return parse(content)
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged ({error}), so kvfs cannot tell what the chunks there are; use another "
            "root_dir or remove the namespace. If its chunks are certainly those of this configuration, "
            "remove only that file, and kvfs writes it again."
        ) from error


def _publish(path: str, wanted: dict[str, object], file_mode: int) -> dict[str, object]:
    """Write the file if nobody has; return what it says."""
    try:
        if small_files.publish(path, _serialized(wanted), file_mode):
            return wanted
    except OSError as error:
        _warn_or_raise(path, error)
        return wanted
    found = _read(path)
    if found is None:
        raise OSError(errno.ENOENT, "somebody removed it while kvfs started; start again", path)
    return found


def _add(
    path: str, found: dict[str, object], news: Mapping[str, object], file_mode: int | None
) -> dict[str, object]:
    """Record what nobody had known of the namespace; all later engines compare with it.

    Without a `file_mode` the directory is not locked, and nothing can be added.
    """
    merged = {**found, **news}
    content = _serialized(merged)
    if file_mode is None or len(content) > SIZE_MAX_BYTES:
        # Two engines might each replace what the other had added.
        _logger.warning(
            "%s does not say %s, and kvfs cannot add it (%s); a change of it will not be noticed there",
            path,
            _listed(news),
            "the file would grow too large" if file_mode else "the file system does not lock directories",
        )
        return merged
    try:
        small_files.replace(path, content, file_mode)
    except OSError as error:
        _warn_or_raise(path, error)
    else:
        _logger.info(
            "%s did not say %s; from now on it does, and its older chunks are taken for such, too",
            path,
            _listed(news),
        )
    return merged


def _compare(namespace: Namespace, found: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """Refuse a namespace that says something else of one of our fields; saying nothing is no difference."""
    differences = [
        f"{name}: {found[name]!r:.80} there, {here!r:.80} here"
        for name, here in wanted.items()
        if here is not None and found.get(name) is not None and found[name] != here
    ]
    if not differences:
        return
    advice = f"use another root_dir, or remove {namespace.config_dir} and {namespace.config_dir}_r*"
    version = found["layout_version"]
    if isinstance(version, int) and version > LAYOUT_VERSION:
        advice = f"it was written by a newer kvfs: install that, or {advice}"
    raise ValueError(
        f"{namespace.identity_path} says that this namespace holds other chunks ({'; '.join(differences)}); "
        f"{advice}"
    )


def _warn_or_raise(path: str, error: OSError) -> None:
    if error.errno not in _NOT_WRITABLE:
        code = error.errno or errno.EIO
        raise OSError(
            code, f"cannot record what the kvfs namespace holds ({error.strerror or error})", path
        ) from error
    _logger.warning(
        "kvfs cannot write %s (%s); chunks are loaded all the same, but an engine with other ones will not "
        "be told from this one there",
        path,
        error.strerror or error,
    )


def _listed(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value!r}" for name, value in fields.items())


def _serialized(record: Mapping[str, object]) -> bytes:
    # Without a newline at its end, so that nothing shorter than the file is a record.
    return json.dumps(record, indent=2, sort_keys=True, allow_nan=False).encode("ascii")


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a field is there twice")
    return record
