"""Cache directories on the tmpfs, for `--cache-dir memory`: one per process, removed at its end."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from outrider.adapters.disk.block_dir import UnusableCacheDir

PARENT = Path("/dev/shm")  # noqa: S108 - a tmpfs is the point: `--cache-dir memory`
_PREFIX = "outrider-"


def make() -> Path:
    """Create a directory on the tmpfs. Directories of killed processes are removed first: their lock is free.

    Raises:
        UnusableCacheDir: there is no writable tmpfs.
    """
    try:
        for path in PARENT.glob(_PREFIX + "*"):
            _remove_if_orphaned(path)
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=PARENT))
    except OSError as error:
        raise UnusableCacheDir(f"--cache-dir memory needs a writable {PARENT}: {error.strerror}") from error


def remove(path: Path) -> None:
    assert path.parent == PARENT
    assert path.name.startswith(_PREFIX)
    shutil.rmtree(path, ignore_errors=True)


def _remove_if_orphaned(path: Path) -> None:
    try:
        fd = os.open(path / "outrider-cache", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # another program's, or just being made
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(path)
    except OSError:
        pass  # the lock is held: its process runs
    finally:
        os.close(fd)
