"""Stand in for vLLM with a disk tier: counts tokens, stores a chunk at its first start, reads it at the next.

`standin_vllm.py PORT DIRECTORY TIER`; with TIER "" nothing is stored or read, with "deaf" nothing is read.
"""

import http.server
import json
import os
import sys
from pathlib import Path

CHUNK_BYTES = 1 << 20
TOKENS = 128


class Counts:
    """What /metrics tells, and the chunk on the disk."""

    def __init__(self, directory: Path, tier: str) -> None:
        self.chunk = directory / "chunk.bin"
        self.tier = tier
        self.is_warm = self.chunk.exists()
        self.prompt = self.from_disk = self.read_bytes = self.write_bytes = 0

    def answer(self) -> None:
        """Do what an answered prompt does."""
        self.prompt += TOKENS
        if self.is_warm and self.tier != "deaf":
            with self.chunk.open("rb") as file:
                self.read_bytes += len(file.read())
                # The next one is read from the disk, too.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self.from_disk += TOKENS
        elif self.tier:
            self.chunk.write_bytes(os.urandom(CHUNK_BYTES))
            self.write_bytes += CHUNK_BYTES

    def text(self) -> str:
        """Return it in the Prometheus text format."""
        values = {
            "vllm:prompt_tokens_total": self.prompt,
            'vllm:prompt_tokens_cached_by_source_total{source="disk"}': self.from_disk,
            'vllm:kv_offload_tiering_read_bytes_total{tier="1:fs"}': self.read_bytes,
            'vllm:kv_offload_tiering_write_bytes_total{tier="1:fs"}': self.write_bytes,
        }
        return "".join(f"# TYPE {name.split('{')[0]} counter\n{name} {n}\n" for name, n in values.items())


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers /health, /metrics and every POST."""

    counts: Counts

    def do_GET(self) -> None:
        self._send(self.counts.text().encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.counts.answer()
        self._send(json.dumps({}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    Handler.counts = Counts(Path(sys.argv[2]), sys.argv[3])
    # What a real server says of its engine, for those who look into its log.
    sys.stdout.write("kvfs runs on its native extension\n")
    sys.stdout.flush()
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
