"""Mounts by fusermount3, and gives the descriptor over which the kernel talks."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

_COMMFD = "_FUSE_COMMFD"


class NotMounted(OSError):
    """fusermount3 did not mount; it has said why on stderr."""


def mount(helper: str, directory: str, options: Sequence[str]) -> int:
    """Mount at `directory`. Returns a descriptor of /dev/fuse, which does not block.

    Raises:
        NotMounted
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        done = subprocess.run(
            [helper, "-o", ",".join(options), "--", directory],
            env={**os.environ, _COMMFD: str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            check=False,
        )
        if done.returncode:
            raise NotMounted(f"{helper} ended with status {done.returncode}")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
    received = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(data[: received.itemsize])
    if not received:
        raise NotMounted(f"{helper} sent no descriptor")
    os.set_blocking(received[0], False)
    os.set_inheritable(received[0], False)
    return received[0]


def read_ahead(directory: str, size_bytes: int) -> None:
    """Let the kernel read so much ahead of a reader. Without the rights for that it stays at its 128 KiB."""
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        if fields[4] == directory.replace("\\", "\\134").replace(" ", "\\040"):
            with contextlib.suppress(OSError):
                Path(f"/sys/class/bdi/{fields[2]}/read_ahead_kb").write_text(str(size_bytes // 1024))
