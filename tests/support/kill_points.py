"""Runs `outrider` so that it dies by SIGKILL, or hangs for ever, at a chosen file operation of its own.

Run as `python -m tests.support.kill_points serve ...`. `KILL_POINT` in the environment is `MOMENT:NUMBER`: the process
dies at operation NUMBER (from 1) of those in the cache directory whose name begins with MOMENT. A name states the
operation and its place: `open tmp`, `write tmp`, `rename v2`, `remove v2`, `scandir v2`, `write index`. A `write` dies
with the first half of its bytes written, any other operation before it is done; with `MOMENT:NUMBER:after` it dies
after it is done. With `MOMENT:NUMBER:hang` the operation hangs there, as on a disk that does not answer, and so do all
later ones of that name.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import aiofiles.threadpool

from outrider.cli import main


class KillPoint:
    """Counts the operations in the cache directory."""

    def __init__(self, root: Path, words: str) -> None:
        self._root = str(root)
        moment, number, *after = words.split(":")
        self._moment = moment
        self._left = int(number)
        self._after = after == ["after"]
        self._hangs = after == ["hang"]

    def comes(self, act: str, path: Any) -> bool:
        """Whether this operation is the chosen one."""
        place = os.fsdecode(path)
        if not place.startswith(self._root):
            return False
        name = f"{act} {place[len(self._root) :].strip('/').split('/')[0]}"
        if not name.startswith(self._moment):
            return False
        self._left -= 1
        if self._hangs and self._left <= 0:
            # Written in one piece, since several threads may hang at once.
            os.write(2, json.dumps({"level": "info", "event": "hangs"}).encode() + b"\n")
            threading.Event().wait()
        return self._left == 0

    def around(self, act: str, call: Any, place: int) -> Any:
        """Wraps `call` so that the process dies before or after it. Argument number `place` is its path."""

        def dying(*args: Any, **named: Any) -> Any:
            if not self.comes(act, args[place]):
                return call(*args, **named)
            if self._after:
                call(*args, **named)
            return die()

        return dying


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


class Dying(io.FileIO):
    """The index snapshot: it is written through Python's buffers."""

    point: KillPoint

    def write(self, data: Any) -> int:
        if self.point.comes("write", self.name):
            super().write(bytes(data)[: len(data) // 2])
            die()
        return super().write(data)


def install(point: KillPoint) -> None:
    """Wrap each system call of the block store."""
    pwritev = os.pwritev

    def dying_pwritev(fd: int, pieces: Any, offset: int) -> int:
        if point.comes("write", path_of(fd)):
            whole = b"".join(bytes(piece) for piece in pieces)
            os.pwrite(fd, whole[: len(whole) // 2], offset)
            die()
        return pwritev(fd, pieces, offset)

    setattr(os, "pwritev", dying_pwritev)  # noqa: B010 - its type has an argument that nobody uses
    for name, act, place in (
        ("open", "open", 0), ("rename", "rename", 1), ("replace", "rename", 1), ("unlink", "remove", 0),
        ("remove", "remove", 0), ("scandir", "scandir", 0), ("mkdir", "mkdir", 0),
    ):  # fmt: skip
        setattr(os, name, point.around(act, getattr(os, name), place))

    def dying_open(path: Any, *_: Any, **__: Any) -> io.BufferedWriter:
        Dying.point = point
        if point.comes("open", path):
            die()
        return io.BufferedWriter(Dying(path, "w"))

    aiofiles.threadpool.sync_open = dying_open  # type: ignore[attr-defined]


if __name__ == "__main__":
    if words := os.environ.get("KILL_POINT"):
        install(KillPoint(Path(sys.argv[sys.argv.index("--cache-dir") + 1]), words))
    main()
