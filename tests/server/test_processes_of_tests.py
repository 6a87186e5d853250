"""Processes that the tests start (`tests.support.child`) end with the tests, even when the tests are killed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.child import Child, free_ports

REPOSITORY = Path(__file__).parents[2]
GONE_S = 60.0

# A parent whose child has a child of its own; prints the numbers of both.
_PARENT = """
import sys
from pathlib import Path
from tests.support.child import Child
directory = Path(sys.argv[1])
child = Child(["/bin/sh", "-c", "sleep 1000 & echo $!; wait"], log=directory / "log", scratch=[directory])
child.wait_until(lambda: b"\\n" in child.log.read_bytes(), what="the shell", deadline_s=60)
print(child.process.pid, child.log.read_text(), flush=True)
sys.stdin.read()
"""


def wait_until_gone(pidfd: int) -> None:
    readable, _, _ = select.select([pidfd], [], [], GONE_S)
    os.close(pidfd)
    assert readable, "still running"


def test_a_killed_parent_leaves_neither_process_nor_directory(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY
    )
    assert parent.stdout is not None
    pidfds = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
    assert len(pidfds) == 2
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    for pidfd in pidfds:
        wait_until_gone(pidfd)
    # The watchdog removes it right after the kill. No event reports that, so the test polls.
    until = time.monotonic() + GONE_S
    while scratch.exists():
        assert time.monotonic() < until, "the directory is still there"


def test_stop_ends_the_whole_session_and_gives_the_status(tmp_path: Path) -> None:
    # The trap comes first: the printed line shows that it is set.
    argv = ["/bin/sh", "-c", "trap 'exit 7' TERM; sleep 1000 & echo $!; wait"]
    child = Child(argv, log=tmp_path / "log")
    child.wait_until(lambda: b"\n" in child.log.read_bytes(), what="the shell", deadline_s=60)
    grandchild = os.pidfd_open(int(child.log.read_text()))
    assert child.stop() == 7
    wait_until_gone(grandchild)


def test_a_program_that_a_test_starts_draws_other_ports_than_the_test() -> None:
    """The test may have drawn a port that its server takes only later."""
    code = "from tests.support.child import free_ports; print(*free_ports(50))"
    drawn = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert min(map(int, drawn.stdout.split())) > max(free_ports(50))
