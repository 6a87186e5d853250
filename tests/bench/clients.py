"""The clients that load a target, all of them real: wrk, curl, boto3, the aws CLI, and a plain HTTP connection."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from boto3.s3.transfer import TransferConfig

from tests.bench.world import NAME, PROBE, BenchError, World, pieces
from tests.support.child import clean_environment, program
from tests.support.simulator import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCRIPT = Path(__file__).with_name("wrk.lua")
_DEADLINE_S = 180.0
# Heads are about 400 bytes. An answer that exceeds the requested length by more than this ignored the range.
_HEAD_BYTES_MAX = 2048


@dataclass(frozen=True, slots=True)
class Took:
    """The result of one run of a client. Latencies None: the client does not report them."""

    seconds: float
    bytes: int
    requests: int
    p50_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One request for wrk. `extent` None: the whole object."""

    url: str
    extent: tuple[int, int] | None = None

    @property
    def line(self) -> str:
        parts = urlsplit(self.url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        span = "" if self.extent is None else f"bytes={self.extent[0]}-{self.extent[1] - 1}"
        return f"{path}\t{span}\n"


def wrk(wanted: Sequence[Wanted], answer_bytes: int, *, connections: int, seconds: int, directory: Path) -> Took:
    """Request `wanted` over and over, each answer `answer_bytes` long. Two threads, so that wrk is not the bottleneck.

    Raises:
        BenchError: an answer failed, or had another length.
    """
    requests = directory / "requests"
    requests.write_text("".join(request.line for request in wanted))
    parts = urlsplit(wanted[0].url)
    threads = min(2, connections)
    done = _run(
        program("wrk"), "--threads", threads, "--connections", connections, "--duration", f"{seconds}s",
        "--timeout", "30s", "--script", _SCRIPT, f"{parts.scheme}://{parts.netloc}", "--", requests, threads,
    )  # fmt: skip
    return _reported_by_wrk(done, answer_bytes, connections)


def wrk_once(urls: Sequence[str], answer_bytes: int, *, connections: int, directory: Path) -> Took:
    """Request each URL once, each answer `answer_bytes` long. The time ends with the last answer.

    Raises:
        BenchError: an answer failed, or had another length.
    """
    requests = directory / "requests"
    requests.write_text("".join(Wanted(url).line for url in urls))
    parts = urlsplit(urls[0])
    begun = time.monotonic()
    done = _run(
        program("wrk"), "--threads", 1, "--connections", connections, "--duration", "3h", "--timeout", "30s",
        "--script", _SCRIPT, f"{parts.scheme}://{parts.netloc}", "--", requests, "once", deadline_s=None,
    )  # fmt: skip
    seconds, result = time.monotonic() - begun, json.loads(done.splitlines()[-1])
    if result["errors"] or result["bytes"] != answer_bytes * result["requests"]:
        raise BenchError(f"answers that failed, or had another length:\n{done}")
    return Took(seconds, len(urls) * answer_bytes, len(urls))


def _reported_by_wrk(done: str, answer_bytes: int, connections: int) -> Took:
    result = json.loads(done.splitlines()[-1])
    if result["errors"] or not result["requests"]:
        raise BenchError(f"{result['errors']} of {result['requests']} answers failed:\n{done}")
    each = result["bytes"] / result["requests"]
    # The end of the run cuts the last answer of each connection: its bytes count, but not as a request.
    cut = connections * answer_bytes / result["requests"]
    if not answer_bytes * 0.9 <= each <= answer_bytes + cut + _HEAD_BYTES_MAX:
        raise BenchError(f"answers of {each:.0f} bytes, not {answer_bytes}")
    return Took(
        result["seconds"], result["requests"] * answer_bytes, result["requests"], result["p50_s"], result["p99_s"]
    )


def wrk_fixed(url: str, extent: tuple[int, int] | None, answer_bytes: int, *, connections: int, seconds: int) -> Took:
    """Request one extent (None: the whole object) over and over, by a client that costs little: no script makes its
    requests.

    Raises:
        BenchError: an answer failed, or had another length.
    """
    headers = () if extent is None else ("--header", f"Range: bytes={extent[0]}-{extent[1] - 1}")
    done = _run(
        program("wrk"), "--threads", 2, "--connections", connections, "--duration", f"{seconds}s", "--timeout", "30s",
        *headers, "--script", _SCRIPT, url,
    )  # fmt: skip
    return _reported_by_wrk(done, answer_bytes, connections)


def curl(urls: Sequence[str], size_bytes: int, readers: int, authority: Path | None = None) -> Took:
    """Read whole objects of `size_bytes` each, dealt to `readers` processes, one connection each. `authority`: the
    certificate to trust over https; None: those of the system.

    Raises:
        BenchError: an object did not come whole.
    """
    begun = time.monotonic()
    running = []
    for part in pieces(list(urls), readers):
        # Every URL needs an output of its own, or curl writes the rest to the terminal.
        words = [word for url in part for word in ("--output", os.devnull, url)]
        argv: list[str | Path] = [
            program("curl"),
            "--silent",
            "--show-error",
            "--fail",
            "--write-out",
            "%{size_download}\n",
            *(() if authority is None else ("--cacert", authority)),
            *words,
        ]
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=_DEADLINE_S) for process in running]
    seconds = time.monotonic() - begun
    sizes = [int(line) for out, _ in outputs for line in out.split()]
    if any(process.returncode for process in running) or sizes != [size_bytes] * len(urls):
        errors = " ".join(err for _, err in outputs)
        raise BenchError(f"curl read {sum(sizes)} of {size_bytes * len(urls)} bytes: {errors[:1000]}")
    return Took(seconds, sum(sizes), len(sizes))


def boto_readers(world: World, endpoint: str, keys: Sequence[str], readers: int) -> Took:
    """Read `keys` whole by boto3, dealt to `readers` processes. Their start-up is neither in the time nor in the
    counts.

    Raises:
        BenchError: they did not read every byte.
    """
    parts = pieces(list(keys), readers)
    seconds, read = _run_together(world, [["boto3", endpoint, NAME, PROBE, *part] for part in parts])
    return _whole(Took(seconds, read, len(keys)), world, keys)


def sinks(world: World, url: str, size_bytes: int, reads: int, readers: int) -> Took:
    """Read one object `reads` times in all, by `readers` that do not even copy the bytes: the server's upper limit.

    Raises:
        BenchError: it did not come whole each time.
    """
    words = ["sink", str(reads // readers), url]
    seconds, read = _run_together(world, [words] * readers)
    if read != reads // readers * readers * size_bytes:
        raise BenchError(f"{read} of {reads * size_bytes} bytes were read")
    return Took(seconds, read, reads)


def _run_together(world: World, readers: list[list[str]]) -> tuple[float, int]:
    """Run readers (the words of `tests.bench.readers`) and start them all at once; returns the seconds until the last
    has read all, and the bytes read."""
    env = clean_environment() | world.bucket.environment() | {"PYTHONPATH": str(REPOSITORY)}
    with contextlib.ExitStack() as stack:
        running = []
        for words in readers:
            argv: list[str] = [sys.executable, "-m", "tests.bench.readers", *words]
            process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            running.append(stack.enter_context(process))
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        world.simulator.reset()
        begun = time.monotonic()
        for process in running:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("go\n")
                process.stdin.flush()
        # Each process prints its bytes before it ends. The time that an interpreter takes to end does not count.
        lines = [process.stdout.readline() for process in running if process.stdout is not None]
        return time.monotonic() - begun, sum(int(line or 0) for line in lines)


def files(world: World, paths: Sequence[Path], readers: int) -> Took:
    """Read files whole, dealt to `readers` processes. Their start-up is neither in the time nor in the counts.

    Raises:
        BenchError: a file could not be read.
    """
    lists = []
    for number, part in enumerate(pieces([str(path) for path in paths], readers)):
        lists.append(world.directory / f"files-{number}")
        lists[-1].write_text("\n".join(part))
    seconds, read = _run_together(world, [["files", str(listed)] for listed in lists])
    return Took(seconds, read, len(paths))


def aws_program() -> Path | None:
    """The aws CLI; None: not installed."""
    program = Path(os.environ.get("OUTRIDER_TEST_AWS", Path(sys.executable).with_name("aws")))
    return program if os.access(program, os.X_OK) else None


def transfer(world: World, endpoint: str, keys: Sequence[str]) -> Took:
    """Read `keys` one after the other as `pipe:aws s3 cp` does: parallel ranges of 8 MiB, out of order.

    Without an aws CLI, boto3's transfer manager sends the same requests.

    Raises:
        BenchError: they did not come whole.
    """
    aws = aws_program()
    begun = time.monotonic()
    if aws is not None:
        env = clean_environment() | world.bucket.environment()
        read = sum(_piped(aws, endpoint, key, env) for key in keys)
    else:
        client = world.bucket.client(endpoint, max_pool_connections=10)
        sink = _Sink()
        for key in keys:
            client.download_fileobj(NAME, key, sink, Config=TransferConfig(max_concurrency=10))
        client.close()
        read = sink.size_bytes
    return _whole(Took(time.monotonic() - begun, read, len(keys)), world, keys)


class _Sink:
    """A stream like standard output: parts that come too early wait in memory, and nothing seeks."""

    def __init__(self) -> None:
        self.size_bytes = 0

    def write(self, piece: bytes) -> int:
        self.size_bytes += len(piece)
        return len(piece)


def _piped(aws: Path, endpoint: str, key: str, env: dict[str, str]) -> int:
    argv: list[str | Path] = [
        aws,
        "s3",
        "cp",
        "--only-show-errors",
        "--endpoint-url",
        endpoint,
        f"s3://{NAME}/{key}",
        "-",
    ]
    size = 0
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while piece := process.stdout.read(1024 * 1024):
            size += len(piece)
    return size


def one_by_one(urls: Sequence[str], size_bytes: int, threads: int) -> Took:
    """As `one_by_one_of`, for objects of one size."""
    return one_by_one_of(dict.fromkeys(urls, size_bytes), threads)


def one_by_one_of(sizes: Mapping[str, int], threads: int) -> Took:
    """Whole objects, by URL and size, dealt to `threads`, each with one connection; latencies are of whole answers.

    Raises:
        BenchError: an answer failed or was short.
    """
    parts = list(pieces(list(sizes), threads))
    begun = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        timed = [pair for part in pool.map(_timed_reads, parts) for pair in part]
    seconds = time.monotonic() - begun
    wanted = [sizes[url] for part in parts for url in part]
    if [size for size, _, _ in timed] != wanted:
        raise BenchError(f"answers of {sum(size for size, _, _ in timed)} bytes, not {sum(wanted)}")
    return Took(seconds, sum(wanted), len(timed), *_percentiles([whole for _, _, whole in timed]))


def first_bytes(urls: Sequence[str], size_bytes: int) -> Took:
    """Whole objects one after the other on one connection; latencies are of the first byte of the body.

    Raises:
        BenchError: an answer failed or was short.
    """
    begun = time.monotonic()
    timed = _timed_reads(list(urls))
    seconds = time.monotonic() - begun
    if any(size != size_bytes for size, _, _ in timed):
        raise BenchError(f"answers of {sorted({size for size, _, _ in timed})} bytes, not {size_bytes}")
    return Took(seconds, size_bytes * len(timed), len(timed), *_percentiles([first for _, first, _ in timed]))


def _timed_reads(urls: list[str]) -> list[tuple[int, float, float]]:
    """Size, seconds to the first byte, and seconds to the last byte of each URL."""
    timed = []
    connection = http.client.HTTPConnection(urlsplit(urls[0]).netloc, timeout=60)
    connection.connect()
    buffer = bytearray(1024 * 1024)
    for url in urls:
        parts = urlsplit(url)
        begun = time.monotonic()
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
        answer = connection.getresponse()
        size = len(answer.read(1))
        first_s = time.monotonic() - begun
        while count := answer.readinto(buffer):
            size += count
        timed.append((size if answer.status == 200 else -answer.status, first_s, time.monotonic() - begun))
    connection.close()
    return timed


def _percentiles(times_s: list[float]) -> tuple[float, float]:
    ordered = sorted(times_s)
    return statistics.median(ordered), ordered[max(0, -(-len(ordered) * 99 // 100) - 1)]


def _whole(took: Took, world: World, keys: Sequence[str]) -> Took:
    expected = sum(world.sizes[key] for key in keys)
    if took.bytes != expected:
        raise BenchError(f"{took.bytes} of {expected} bytes were read")
    return took


def _run(*argv: object, deadline_s: float | None = _DEADLINE_S) -> str:
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, text=True, timeout=deadline_s, check=False)
    if done.returncode:
        raise BenchError(f"{words[0]}: {done.stdout}{done.stderr}")
    return done.stdout


def missing() -> list[str]:
    """The commands that no load can do without, each with its source."""
    return [name for name in ("wrk", "curl") if shutil.which(name) is None]
