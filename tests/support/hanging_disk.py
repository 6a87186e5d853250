"""A cache disk that stops answering: a FUSE file system whose daemon is stopped and goes on.

The daemon (`bindfs`) passes all calls on to a folder. It is mounted in a mount namespace of its own, which the member
enters. So nobody else waits for it, the mount goes with the last process of the namespace, and no end of this process
leaves one behind: the daemon is killed with it, and calls that wait for a dead daemon fail.

Needs root, /dev/fuse and the programs `bindfs`, `nsenter` and `unshare`; `can_hang` tells.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.child import Child, scratch_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAMS = ("bindfs", "nsenter", "unshare")
# The kernel asks the daemon about everything but the pages that it has in memory.
_OPTIONS = "attr_timeout=0,entry_timeout=0"
_MOUNT_DEADLINE_S = 10.0


def can_hang() -> bool:
    """Whether such a disk can be mounted here."""
    if os.geteuid() != 0 or not Path("/dev/fuse").exists() or not all(map(shutil.which, _PROGRAMS)):
        return False
    with scratch_directory("outrider-disk-") as probe:
        try:
            with HangingDisk(probe / "disk"):
                return True
        except RuntimeError:
            return False


class HangingDisk:
    """As a context: it is mounted at `place`, a new folder. Its log and its files lie beside that.

    Processes that use it must have ended before the context does.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._files = place.with_name(f"{place.name}-files")
        self._daemon: Child | None = None

    def wrapped(self, argv: Sequence[str]) -> list[str]:
        """The command, run where the disk is mounted, by the process that this command begins."""
        assert self._daemon is not None
        return ["nsenter", f"--mount=/proc/{self._daemon.process.pid}/ns/mnt", "env", f"--chdir={Path.cwd()}", *argv]

    def hang(self) -> None:
        """No call is answered, until `go_on`."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def __enter__(self) -> Self:
        self._place.mkdir()
        self._files.mkdir()
        self._daemon = Child(
            [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "bindfs",
                "-f",
                "-o",
                _OPTIONS,
                self._files,
                self._place,
            ],
            log=self._place.with_name(f"{self._place.name}.log"),
            # A daemon that hangs would not end by itself.
            stop_signal=signal.SIGKILL,
        )
        try:
            self._daemon.wait_until(self._is_mounted, what="bindfs", deadline_s=_MOUNT_DEADLINE_S)
        except BaseException:
            self._daemon.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._daemon is not None
        self._daemon.stop()

    def _is_mounted(self) -> bool:
        assert self._daemon is not None
        mounts = Path(f"/proc/{self._daemon.process.pid}/mountinfo").read_text().splitlines()
        return any(line.split()[4] == str(self._place) for line in mounts)

    def _send(self, number: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.process.send_signal(number)
