"""Disks that hang (FUSE) or fail, slow down and fill up (at the system calls)."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

from outrider import pagecache
from tests.support.child import Child, scratch_directory

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


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


# The system calls, and the argument of each that is a path or a descriptor.
_CALLS = {
    "pwritev": ("write", 0), "preadv": ("read", 0), "pread": ("pread", 0), "sendfile": ("send", 1),
    "rename": ("rename", 1), "unlink": ("unlink", 0), "statvfs": ("statvfs", 0), "mkdir": ("create", 0),
    "open": ("open", 0),
}  # fmt: skip


class SickDisk:
    """Within its context, acts on files below `root` fail with an errno while they are in `fails`.

    Acts: create, open, write, read, pread, send, rename, unlink, statvfs. `after_bytes`: for each file, `send` and
    `pread` deliver this many bytes before they fail. `chance` and `probability`: only some acts fail. `times`: only
    this many of them fail. `hold`: these acts do not end before `release`.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.fails: dict[str, int] = {}
        self.after_bytes = 0
        self.chance: random.Random | None = None
        self.probability = 1.0
        self.times: int | None = None
        self.failed = 0
        self._held: frozenset[str] = frozenset()
        self._released = threading.Event()
        self._patches: list[Any] = []

    def fail(self, acts: Iterable[str], number: int) -> None:
        self.fails = dict.fromkeys(acts, number)

    def heal(self) -> None:
        self.fails = {}
        self.release()

    def hold(self, *acts: str) -> None:
        self._released = threading.Event()
        self._held = frozenset(acts)

    def release(self) -> None:
        self._held = frozenset()
        self._released.set()

    def __enter__(self) -> Self:
        for name, (act, place) in _CALLS.items():
            patched = patch.object(os, name, self._sick(getattr(os, name), act, place))
            patched.start()
            self._patches.append(patched)
        known = patch.object(pagecache, "open_known", self._unknowing(pagecache.open_known))
        known.start()
        self._patches.append(known)
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()
        for patched in self._patches:
            patched.stop()

    def _sick(self, call: Callable[..., Any], act: str, place: int) -> Callable[..., Any]:
        def sick(*args: Any, **named: Any) -> Any:
            if not (self.fails or self._held) or not self._is_mine(args[place]):
                return call(*args, **named)
            what = "create" if act == "open" and args[1] & os.O_CREAT else act
            if what in self._held:
                if what == "read" and args[3:] == (os.RWF_NOWAIT,):
                    raise BlockingIOError(errno.EAGAIN, "not in memory")
                assert self._released.wait(60)
            if (
                self.times == 0
                or what not in self.fails
                or (self.chance is not None and self.chance.random() >= self.probability)
            ):
                return call(*args, **named)
            if what == "send" and args[2] < self.after_bytes:
                out, fd, offset, count = args
                return call(out, fd, offset, min(count, self.after_bytes - offset))
            if what == "pread" and args[2] < self.after_bytes:
                fd, count, offset = args
                return call(fd, min(count, self.after_bytes - offset), offset)
            self.failed += 1
            if self.times is not None:
                self.times -= 1
            raise OSError(self.fails[what], os.strerror(self.fails[what]))

        return sick

    def _unknowing(self, call: Callable[[bytes], int | None]) -> Callable[[bytes], int | None]:
        """Where opening fails or waits, the file is not in the page cache either."""

        def sick(path: bytes) -> int | None:
            fails = "open" in self.fails or "open" in self._held
            return None if fails and self._is_mine(os.fsdecode(path)) else call(path)

        return sick

    def _is_mine(self, where: Any) -> bool:
        if isinstance(where, int):
            try:
                where = os.readlink(f"/proc/self/fd/{where}")
            except OSError:
                return False
        return os.fsdecode(where).startswith(self._root)


ILLS: dict[str, tuple[tuple[str, ...], int]] = {
    "full": (("write", "create"), errno.ENOSPC),
    "full, but for an inode": (("write",), errno.ENOSPC),
    "over its quota": (("write", "create"), errno.EDQUOT),
    "read-only": (("create", "rename", "unlink"), errno.EROFS),
    "permission lost": (("create", "open", "rename", "unlink"), errno.EACCES),
    "errors on write": (("write",), errno.EIO),
    "errors on rename": (("rename",), errno.EIO),
    "errors on read": (("read", "pread", "send"), errno.EIO),
    "errors on read, as a file is opened": (("open", "read", "pread"), errno.EIO),
    "errors on all": (("create", "open", "write", "read", "pread", "send", "rename", "unlink", "statvfs"), errno.EIO),
    "it does not report its free space": (("statvfs",), errno.EIO),
}
