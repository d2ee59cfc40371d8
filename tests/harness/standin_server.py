"""Stand in for a server: answers /health, and starts what a real one starts, so that it can be left behind.

`standin_server.py PORT FILE` writes the process ids of all that it started to FILE before it answers.
"""

import http.server
import os
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

REGION = "kvfs_standin_{pid}"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every GET with success."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


def main() -> None:
    port, report = int(sys.argv[1]), Path(sys.argv[2])
    region = shared_memory.SharedMemory(REGION.format(pid=os.getpid()), create=True, size=4096)
    child = subprocess.Popen(["sleep", "600"])
    # One that has left the session, and one whose parent ends at once: both are easily forgotten.
    runaway = subprocess.Popen(["sleep", "601"], start_new_session=True)
    orphan = subprocess.run(
        ["sh", "-c", "sleep 602 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
    pids = [os.getpid(), child.pid, runaway.pid, int(orphan)]
    report.write_text("\n".join([region.name, *map(str, pids)]))
    sys.stdout.write("the stand-in is up\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
