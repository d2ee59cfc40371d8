"""One op of a job: a chunk's way between the primary tier and the disk, and what became of it."""

from __future__ import annotations

import errno
import os
from typing import Final

from kvfs.fallback import files
from kvfs.fallback.chunks import Chunks
from kvfs.fallback.job import Job
from kvfs.fallback.primary import PrimaryTier
from kvfs.jobs import SUCCESS

# A direct transfer that is refused at this alignment would be refused at any.
_DIRECT_ALIGNMENT_MAX: Final = 4096


class Operations:
    """Runs ops. Thread-safe; blocks.

    Args:
        chunks: The namespace.
        primary: The primary tier.
        use_o_direct: Whether to try O_DIRECT, until the file system refuses it.
    """

    def __init__(self, chunks: Chunks, primary: PrimaryTier, use_o_direct: bool) -> None:
        self._chunks = chunks
        self._primary = primary
        self._direct = use_o_direct

    def execute(self, job: Job, op: int, report: files.OpReport) -> tuple[int, str]:
        """Run one op; return its outcome and, for a failure, what to say about it."""
        key = job.key(op)
        try:
            if job.kind == "lookup":
                return self._chunks.lookup(key, self._primary.chunk_size_bytes), ""
            chunk_id = job.chunk_ids[op]
            if not 0 <= chunk_id < self._primary.num_chunks:
                count = self._primary.num_chunks
                return errno.EINVAL, f"because row {chunk_id} lies outside a buffer of {count}"
            with self._primary.row(chunk_id) as chunk:
                direct = self._wants_direct(chunk_id, report)
                if job.kind == "load":
                    self._chunks.load(key, chunk, direct=direct, report=report)
                else:
                    self._chunks.store(key, chunk, direct=direct, report=report)
        except OSError as error:
            return error.errno or errno.EIO, f"at {self._chunks.path(key)}: {error.strerror or error}"
        except MemoryError:
            return errno.ENOMEM, f"at {self._chunks.path(key)}: {os.strerror(errno.ENOMEM)}"
        except Exception as error:  # noqa: BLE001 - a thread that dies would owe the caller a completion
            return errno.EIO, f"at {self._chunks.path(key)}: {error!r}"
        finally:
            self._learn(job, op, report)
        return SUCCESS, ""

    def _wants_direct(self, chunk_id: int, report: files.OpReport) -> bool:
        if not self._direct:
            return False
        if self._primary.aligned(chunk_id, 0, files.DIRECT_ALIGNMENT_MIN):
            return True
        report.direct_refused_at = 0
        return False

    def _learn(self, job: Job, op: int, report: files.OpReport) -> None:
        """Do not try O_DIRECT again where even an aligned transfer was refused."""
        refused_at = report.direct_refused_at
        if refused_at is not None and self._primary.aligned(
            job.chunk_ids[op], refused_at, _DIRECT_ALIGNMENT_MAX
        ):
            self._direct = False
