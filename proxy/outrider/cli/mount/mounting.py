"""Starts a FUSE client, waits until the kernel has mounted, and unmounts at the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.cli.mount.missing import CannotMount
from outrider.cli.run import child_process
from outrider.cli.run.stderr import say

# A client that cannot mount ends, and is not waited for.
_MOUNTED_WAIT_S = 120.0
_POLL_S = 0.02
# A client whose mount is gone ends within milliseconds, unless a reader still has a file open.
_END_WAIT_S = 5.0


def mounted_at(directory: str, mountinfo: str) -> bool:
    """Whether a FUSE file system is mounted at `directory`, an absolute path without links.

    The directory itself is not looked at: this process may be the proxy that its client waits for. Source:
    proc_pid_mountinfo(5).
    """
    for line in mountinfo.splitlines():
        fields, _, rest = line.partition(" - ")
        # The kernel writes blanks and backslashes as octal numbers.
        place = fields.split(" ")[4].encode("latin-1", "backslashreplace").decode("unicode_escape")
        if place.encode("latin-1", "replace") == os.fsencode(directory) and rest.startswith("fuse"):
            return True
    return False


def is_mounted(directory: str) -> bool:
    # Bytes as latin-1: a path may be no UTF-8.
    return mounted_at(directory, Path("/proc/self/mountinfo").read_text(encoding="latin-1"))


def is_dead(directory: str) -> bool:
    """Whether a mount is at `directory` whose client has ended, so that each access to it fails."""
    try:
        os.stat(directory)  # noqa: PTH116 - the error number is what is requested
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def unmount(directory: str, helper: str) -> bool:
    """Unmount, even if files are open there: those stay readable as long as the client lives. Returns whether none was
    open."""
    if subprocess.run([helper, "-u", directory], capture_output=True, check=False).returncode == 0:
        return True
    subprocess.run([helper, "-u", "-z", directory], capture_output=True, check=False)
    return False


class FuseClient:
    """A running FUSE client. `ended` is its return code, when it has ended."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.ended = asyncio.ensure_future(child_process.ended(process))


@asynccontextmanager
async def mounted(
    argv: Sequence[str], environ: Mapping[str, str], directory: str, helper: str, is_ending: Callable[[], bool]
) -> AsyncIterator[FuseClient]:
    """The running client of a mount at `directory`; the mount ends with the context. If `is_ending`, it is not waited
    for.

    Raises:
        CannotMount: the client ended before it had mounted, or took too long.
    """
    client = FuseClient(_started(argv, environ))
    try:
        await _until_mounted(client, directory, is_ending)
        yield client
    finally:
        await asyncio.to_thread(_end, client.process, directory, helper)
        await client.ended


def _started(argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # A process group of its own: Ctrl-C is for the command that reads, and its files must be there until it has ended.
    return subprocess.Popen(argv, env=dict(environ), stdin=subprocess.DEVNULL, stdout=2, process_group=0)


async def _until_mounted(client: FuseClient, directory: str, is_ending: Callable[[], bool]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MOUNTED_WAIT_S):
            while not (is_mounted(directory) or is_ending()):
                if client.ended.done():
                    raise CannotMount(
                        f"the FUSE client ended with status {client.ended.result()} before it had mounted."
                    )
                await asyncio.sleep(_POLL_S)
            return
    raise CannotMount(f"the FUSE client has not mounted after {_MOUNTED_WAIT_S:.0f} s.")


def _end(process: subprocess.Popen[bytes], directory: str, helper: str) -> None:
    if not is_mounted(directory):
        process.terminate()
    elif not unmount(directory, helper):
        say(f"files at {directory} are still open: it is unmounted, and they fail from now on")
        process.terminate()
    for act in (process.terminate, process.kill):
        try:
            process.wait(_END_WAIT_S)
            break
        except subprocess.TimeoutExpired:
            act()
    if is_mounted(directory):
        unmount(directory, helper)  # it mounted just as it was stopped
