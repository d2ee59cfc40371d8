"""A server of the OpenAI API that takes a known time to its first token and answers words, in a thread."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator, Mapping

TTFT_S = 0.03
BETWEEN_TOKENS_S = 0.002


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer that all is well, and with the one model; anything else is not there."""
        if self.path == "/health":
            self._answer(200, {})
        elif self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": "stand-in", "object": "model"}]})
        else:
            self._answer(404, {"error": {"message": f"{self.path} is not here"}})

    def do_POST(self) -> None:
        """Answer as many words as are asked for; as a stream, then what was used, if that is asked for."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions":
            self._answer(404, {"error": {"message": f"{self.path} is not here"}})
            return
        count = int(asked["max_tokens"])
        time.sleep(TTFT_S)
        if not asked.get("stream"):
            text = "".join(f" word{number}" for number in range(count))
            self._answer(200, {"id": "1", "choices": [{"index": 0, "text": text, "finish_reason": "length"}]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        # The end of the connection is the end of the stream.
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(count):
            self._send_event([{"index": 0, "text": f" word{number}", "finish_reason": None}], None)
            time.sleep(BETWEEN_TOKENS_S)
        prompt_tokens = len(str(asked["prompt"]).split())
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": count}
        self._send_event([], usage | {"total_tokens": prompt_tokens + count})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass

    def _send_event(self, choices: list[dict[str, object]], usage: dict[str, int] | None) -> None:
        event = {"id": "1", "object": "text_completion", "model": "stand-in", "choices": choices}
        self.wfile.write(b"data: " + json.dumps(event | {"usage": usage}).encode() + b"\n\n")

    def _answer(self, status: int, content: Mapping[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve on a free port while the block lasts; yield the address."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
