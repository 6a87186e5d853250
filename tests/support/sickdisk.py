"""A disk that fails as a test demands: injected errors at the port between a proxy in this process and the system.

Permissions would not do, since root may write anywhere; few users may mount a file system that fails.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any, Self
from unittest.mock import patch

from outrider import pagecache

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable
    from pathlib import Path

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
    "it does not tell its free space": (("statvfs",), errno.EIO),
}
