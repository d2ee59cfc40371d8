"""A headless Chromium that opens a page, looks at it, and writes down what the page complained about.

It is driven over a pipe by the DevTools protocol: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.sessions import sysdeps

ANSWER_TIMEOUT_S = 60.0
PHONE_WIDTH = 600
_FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    # Containers forbid the namespaces that its sandbox is made of, and have little /dev/shm.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    # Nothing but the page may want something from the network.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--proxy-server=127.0.0.1:9",
)


class Browser:
    """One page in one browser, ended with the `with` block.

    Args:
        profile: A directory of its own.
    """

    def __init__(self, profile: Path) -> None:
        program = sysdeps.browser()
        assert program, "no Chromium on PATH"
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        # The browser reads from descriptor 3 and writes to 4; the shell puts the pipes there.
        command = shlex.join([program, *_FLAGS, f"--user-data-dir={profile}"])
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command} 3<&{theirs_in} 4>&{theirs_out}"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._unread = b""
        self._count = 0
        self._session = ""
        # What the page logged or threw, and what it asked the network for.
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Self:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # It ends when nobody holds the other end of its pipe.
        os.close(self._out)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)

    def open(self, path: Path, *, width: int, dark: bool) -> None:
        """Open a file at a width in CSS pixels, and wait until it is loaded."""
        self.complaints.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < PHONE_WIDTH,
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=path.as_uri())
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while self.evaluate("document.readyState + location.href") != f"complete{path.as_uri()}":
            assert time.monotonic() < deadline_s, f"{path} is not loaded"

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write what the page looks like as PNG, below the window's edge, too."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def call(self, method: str, **params: object) -> dict[str, Any]:
        """Call a method of the protocol and return its result; note the events that come before it."""
        self._count += 1
        message: dict[str, object] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer}"
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))
        elif event == "Log.entryAdded":
            self.complaints.append(str(params["entry"]["text"]))
        elif event == "Network.requestWillBeSent":
            self.requests.append(str(params["request"]["url"]))

    def _read(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline_s - time.monotonic()))
            assert ready, "the browser does not answer"
            got = os.read(self._in, 1 << 20)
            assert got, "the browser has ended"
            self._unread += got
        line, _, self._unread = self._unread.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer
