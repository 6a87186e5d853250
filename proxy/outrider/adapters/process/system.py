"""Sets up the process: logs, the limit on open files, the heap, the garbage collector and the event loop."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Literal, TextIO

import uvloop

log = logging.getLogger(__name__)

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The facts of the event: attributes that not every record has."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, event, then the facts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """The same facts in a shorter form, for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{name}={_printable(value)}" for name, value in fields_of(record).items())
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.getMessage()} {facts}".rstrip()
        if record.levelno >= logging.WARNING:
            line = f"{record.levelname}: {line}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _printable(value: object) -> str:
    """`value` as text, quoted if needed: a key may hold line breaks and terminal escapes, which must have no effect."""
    text = str(value)
    return text if text.isprintable() else repr(text)


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes records as JSON lines. The access log adds lines that are JSON already to `waiting`: they are written
    before the next record, so that all lines are in the order of their times."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.setFormatter(JsonLines())
        self.waiting: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.write_waiting()
        super().emit(record)

    def write_waiting(self) -> None:
        with self.lock or nullcontext():
            # Another thread may add lines meanwhile.
            count = len(self.waiting)
            lines = "".join(self.waiting[:count])
            del self.waiting[:count]
            if not lines:
                return
            try:
                self.stream.write(lines)
                self.flush()
            except Exception:  # noqa: BLE001 - as logging does: a log that fails must not end a request
                self.handleError(logging.makeLogRecord({"msg": "access log"}))


def set_up_logs(level: str, form: Literal["json", "text"] | None) -> None:
    """Send the logs of this process to stderr. `form` None: text on a terminal, else JSON."""
    handler: logging.Handler = LineHandler(sys.stderr)
    if form == "text" or (form is None and sys.stderr.isatty()):
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Lower levels of these libraries are not logged: their lines may hold URLs with signatures, or headers with tokens.
    for name in ("aiohttp", "aiobotocore", "botocore", "asyncio", "httpcore2", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)


_OPEN_FILES_MAX = 65536


def raise_open_files_limit() -> int:
    """Raise the limit on open files as far as the system allows, up to a bound. Returns the new limit.

    A connection takes two descriptors, an open block file one: see `core.cache.descriptor_budget`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


# Niceness is inherited, and half of its range is left to whoever runs the job.
_AHEAD_BY = 10


def come_first() -> None:
    """Let this process, and all that it starts from now on, run before the processes that wait for it. Without the
    right to do so it stays as it is.

    On a machine with more to run than cores, a reader would else wait in the queue once for itself, and once more for
    each process that its bytes pass.
    """
    with suppress(OSError):
        # Niceness is that of a thread on Linux, and those of the disks run already.
        for thread in (int(task.name) for task in Path("/proc/self/task").iterdir()):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) - _AHEAD_BY)


def end_within(seconds: float, status: int) -> None:
    """End this process with `status` after `seconds`, unless it has ended before.

    A thread that waits for a dead disk never ends, and both our stop and Python's exit would wait for it.
    """

    def end() -> None:
        log.error("stop cut off: something does not answer, the cache disk as a rule")
        os._exit(status)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


# Source: mallopt(3), <malloc.h>.
_M_ARENA_MAX = -8


def keep_memory_small() -> None:
    """Limit the C library to two heaps for all threads, instead of eight per core: threads then reuse freed memory.

    A C library without this option is left as it is.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)


def give_back_memory() -> None:
    """Give free pages back to the kernel, also those between memory in use. It takes 0.2 ms for each megabyte of them.

    Each column of a table is one block of the C library, which moves as it grows and leaves a gap: a fifth of the
    memory of a small object. A C library without this call is left as it is.

    Rejected: large blocks outside of the heaps (M_MMAP_THRESHOLD), which leave no gaps. Then the buffers of 256 KiB to
    1 MiB that a request has for a moment take five times as long to get, and smaller columns leave gaps all the same.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


# A full collection that takes longer delays readers noticeably. At 20 ns per object it has looked at some 500,000.
_LONG_COLLECTION_S = 0.010


def keep_collections_short() -> None:
    """Exclude long-lived objects from later garbage collections (`gc.freeze`).

    The cache holds some 20 Python objects for each small S3 object that was read, and keeps them. Every full collection
    would look at all of them, while all loops stand still: a tenth of a second at 20,000 S3 objects. It would find
    nothing, since no request, fill or order leaves a cycle (`tests/server/test_no_reference_cycles.py`). Reference
    counting still frees frozen objects. Only a frozen cycle is lost when it becomes unreachable.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(freezing_after_long_ones(time.thread_time))


def freezing_after_long_ones(clock: Callable[[], float]) -> Callable[[Literal["start", "stop"], dict[str, int]], None]:
    """A function for `gc.callbacks` that freezes all objects after each long full collection. `clock` is in seconds."""
    began = 0.0

    def on_collection(phase: Literal["start", "stop"], info: dict[str, int]) -> None:
        nonlocal began
        if info["generation"] < 2:
            return
        if phase == "start":
            began = clock()
        elif clock() - began > _LONG_COLLECTION_S:
            gc.freeze()

    return on_collection


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores that this process may use: those of its affinity, as far as the quota of its cgroup goes. At least one.
    A container sees its own `cgroup` there."""
    cores = len(os.sched_getaffinity(0))
    v2, v1 = ["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]
    for files in (v2, v1):
        # "max" and -1: no quota.
        with suppress(OSError, ValueError):
            quota_us, period_us = (int(word) for file in files for word in (cgroup / file).read_text().split())
            if quota_us > 0:
                cores = min(cores, quota_us // period_us)
    return max(1, cores)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop: small hits take less CPU there than on asyncio's own loop."""
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
