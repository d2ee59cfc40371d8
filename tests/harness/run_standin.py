"""Run the stand-in server the way the benchmark runs vLLM, until somebody ends this program."""

import sys
import time
from pathlib import Path

from harness.server import Server, ServerSpec, free_port
from harness.signals import end_in_order


def main() -> None:
    directory = Path(sys.argv[1])
    port = free_port()
    program = Path(__file__).with_name("standin_server.py")
    spec = ServerSpec(
        command=[sys.executable, str(program), str(port), str(directory / "started")],
        base_url=f"http://127.0.0.1:{port}",
        log_path=directory / "server.log",
        ready_timeout_s=30,
    )
    end_in_order("standin")
    with Server(spec) as server:
        server.wait_until_up()
        (directory / "up").touch()
        time.sleep(600)


if __name__ == "__main__":
    main()
