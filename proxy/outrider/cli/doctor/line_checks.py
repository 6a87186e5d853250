"""Check of `outrider doctor` of the line to a bucket: how fast large bodies come, and what one core carries of that."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.cli.doctor.finding import Diagnosis, ok, warn
from outrider.core.model import ObjectRef
from outrider.ports import ByteSink, OriginRequest, Place

# Enough for the line to come up to speed, and little beside what a bucket charges for.
SAMPLE_BYTES = 32 * 2**20
LARGE_BYTES = 8 * 2**20
"""From this size on an object shows the rate of the line; the time of a smaller one is latency."""
_GETS = 4
_DEADLINE_S = 5.0
# A share of all cores beyond which these are the limit: other work needs some, too.
_BUSY = 0.8
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


async def line_finding(origin: HttpOrigin, ref: ObjectRef, size: int, cores: int) -> Diagnosis:
    """Read the begin of an object of `size` bytes, as a fill does. `origin` has its receivers."""
    part = min(size, SAMPLE_BYTES) // _GETS
    cpu_before_s, began = _cpu_s(), time.monotonic()
    with ExitStack() as stack:
        sinks = [stack.enter_context(closing(_Memory())) for _ in range(_GETS)]
        stack.enter_context(suppress(TimeoutError))
        async with asyncio.timeout(_DEADLINE_S):
            await asyncio.gather(
                *(_read(origin, ref, number * part, part, sink) for number, sink in enumerate(sinks))
            )  # fmt: skip
    took_s, cpu_s = time.monotonic() - began, _cpu_s() - cpu_before_s
    return judged(sum(sink.count for sink in sinks), took_s, cpu_s, cores)


def judged(count: int, took_s: float, cpu_s: float, cores: int) -> Diagnosis:
    """`count` bytes were received in `took_s`, for `cpu_s` of CPU, on a machine of which `cores` may be used."""
    text = f"{count / took_s / 1e6:.0f} MB/s by {_GETS} GETs at once"
    if cpu_s > 0:
        text += f"; one core carries {count / cpu_s / 1e6:.0f} MB/s, and {cores} may be used"
    if cpu_s < _BUSY * cores * took_s:
        return ok("line", text)
    return warn(
        "line", f"{text}: they are the limit, and not the line",
        "Give the proxy more cores (CPU limit of the container, taskset); see docs/sizing.md.",
    )  # fmt: skip


async def _read(origin: HttpOrigin, ref: ObjectRef, start: int, count: int, sink: _Memory) -> None:
    headers = (("range", f"bytes={start}-{start + count - 1}"),)
    request = OriginRequest("GET", ref.bucket, ref.key, headers=headers, bulk=True)
    with closing(await origin.ask(request)) as reply:
        if reply.status != 206:
            return
        if reply.in_thread:
            await reply.receive(count, sink, lambda _: None)
        while piece := await reply.some():
            sink.write(memoryview(piece))


def _cpu_s() -> float:
    """That this process and its receivers have taken."""
    children = [child for task in Path("/proc/self/task").iterdir() for child in _words(task / "children")]
    # After the name, which may have spaces.
    ticks = sum(int(field) for child in children for field in _words(Path(f"/proc/{child}/stat"), ")")[11:13])
    return time.process_time() + ticks / _TICKS_PER_S


def _words(path: Path, after: str = "") -> list[str]:
    try:
        text = path.read_text()
        return (text.rpartition(after)[2] if after else text).split()
    except OSError:
        return []


class _Memory(ByteSink):
    """Memory in place of a block file."""

    is_awaited = False

    def __init__(self) -> None:
        self._file = os.memfd_create("outrider")
        self.count = 0

    def write(self, data: memoryview) -> None:
        self.count += os.pwrite(self._file, data, self.count)

    def place(self, count: int) -> Place:
        return Place(self._file, self.count, 0 if self.count < 2**20 else None)

    def written(self, count: int, disk_s: float) -> None:
        self.count += count

    def hashed(self, digest: bytes, crc: int) -> None:
        pass

    def refused(self, error: OSError) -> None:
        raise error

    def check(self) -> None:
        pass

    def ended(self) -> None:
        pass

    def close(self) -> None:
        os.close(self._file)
