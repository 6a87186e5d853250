"""Child processes that die with their parent, however it dies, and whose scratch directories are removed with them."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.forkserver import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


LOG_TAIL_BYTES = 4000

# The parent's end of stdin is the lifeline: it closes when the parent ends, by SIGKILL too. PR_SET_PDEATHSIG was
# rejected: it fires when the *thread* that started the child ends, and it cannot remove a directory.
# `kill -s KILL`, since dash takes `-9` and `--` only apart.
_WATCHDOG = """
trap '' INT TERM HUP
read -r word
[ "$word" = ended ] || [ "$1" = none ] || kill -s KILL -- "-$1" 2>/dev/null
shift
for path in "$@"; do rm -rf -- "$path"; done
"""


class Child:
    """One process in its own session, its output in a log file; `stop()` ends it, and all processes that it started.

    It gets `stop_signal` first, and has `grace_s` to end by itself. When the parent is killed, the child is killed.
    Either way, the files and directories in `scratch` are removed after it. A log that is to be read after `stop()`
    must lie elsewhere.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        scratch: Sequence[Path] = (),
        stop_signal: signal.Signals = signal.SIGTERM,
        grace_s: float = 60.0,
        user: int | None = None,
        forked: bool = False,
    ) -> None:
        """`user`: the user that it runs as, in the group of the same number and no other; None: the user of this
        process. `forked`: a module of this repository comes from the fork server. That is for tests alone: a benchmark
        measures a new interpreter."""
        self.log = log
        self._stop_signal = stop_signal
        self._grace_s = grace_s
        with log.open("wb") as out:
            self.process = Process(
                [str(word) for word in argv],
                forked=forked,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else (),
            )
        self._watchdog = _watch(str(self.process.pid), scratch)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def log_tail(self) -> str:
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") or "(it has printed nothing)"

    def wait_until(self, ready: Callable[[], object], *, what: str, deadline_s: float) -> None:
        """Poll `ready` until it is true.

        Raises:
            RuntimeError: the process ended, or the deadline passed; the message ends with the tail of its log.
        """
        until, pauses = time.monotonic() + deadline_s, longer_pauses()
        while not ready():
            if not self.running:
                raise RuntimeError(f"{what} ended with status {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > until:
                raise RuntimeError(f"{what} was not ready after {deadline_s:.0f} s:\n{self.log_tail()}")
            time.sleep(next(pauses))

    def stop(self) -> int:
        """End the process and remove its scratch; returns its exit status (negative: the signal that ended it)."""
        if self.running:
            self.process.send_signal(self._stop_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=self._grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        # The number of a process that was waited for may belong to a stranger by now: the watchdog must not kill that
        # one.
        last_word = b"\n" if self.running else b"ended\n"
        self._watchdog.communicate(last_word)
        return self.process.wait()


def longer_pauses() -> Iterator[float]:
    """The seconds between two looks at what takes its time. Each look at a process costs milliseconds of both."""
    pause_s = 0.01
    while True:
        yield pause_s
        pause_s = min(1.5 * pause_s, 0.1)


@contextlib.contextmanager
def scratch_directory(prefix: str, place: Path | None = None) -> Iterator[Path]:
    """A new temporary directory that is removed at the end, even when this process is killed before. `place` None: the
    usual directory for such files."""
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    watchdog = _watch("none", [directory])
    try:
        yield directory
    finally:
        watchdog.communicate(b"\n")


def _watch(pid: str, scratch: Sequence[Path]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHDOG, "watchdog", pid, *(str(path) for path in scratch)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


# The ports that were given last: a test may draw one more before its server listens on the first.
_GIVEN: deque[int] = deque(maxlen=200)
_PORTS_OF_TESTS, _PORTS_OF_THEIR_CHILDREN = range(20_000, 28_000), range(28_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Different loopback ports on which nobody listens now.

    They lie below the kernel's own range (32768 and up): an outgoing connection of any process might take a port from
    there between this call and the server's start. For the same reason, test processes that run side by side
    (pytest-xdist) draw from numbers of their own. So do the programs that a test starts: they do not know the ports
    that the test has drawn and not yet used.
    """
    ports_here = _PORTS_OF_TESTS if "pytest" in sys.modules else _PORTS_OF_THEIR_CHILDREN
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.choice(ports_here[process::processes])
            if port in _GIVEN:
                continue
            listener = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
                _GIVEN.append(port)
        return ports


def clean_environment() -> dict[str, str]:
    """The environment without the variables that configure S3 tools or Outrider; the interpreter's own directory comes
    first in PATH."""
    cached = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3_", "OUTRIDER_", "WDS_"))
    }
    cached["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{cached.get('PATH', os.defpath)}"
    cached["AWS_CONFIG_FILE"] = cached["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    return cached


def program(name: str) -> Path:
    """The path of a command of this environment: beside the interpreter (no activation needed), else in PATH.

    Raises:
        FileNotFoundError: it is in neither.
    """
    beside = Path(sys.executable).parent / name
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is neither beside {sys.executable} nor in PATH")
    return Path(found)


def open_below(directory: Path) -> list[str]:
    """The targets of the open descriptors that lead below `directory`.

    Descriptors that lead elsewhere do not count: those of earlier tests may be closed at any time, by the garbage
    collector or in a thread.
    """
    targets: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself is closed by now, and another may be.
        with suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [target for target in targets if target.startswith(f"{directory}/")]
