"""Small state files of the cache directory: private to this user, replaced whole, and checked when they are read.

A file is written under its own name with `.part` added, and renamed when it is complete: a crash leaves the older
content or the newer one, never a mixture. Writers on the event loop use `write`, whose file work runs in the threads of
the store; code that is in such a thread already uses `replacing`.

Three formats exist, since files of older versions must stay readable: `JsonFormat`, `DigestFormat` and `LinesFormat`.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import aiofiles
import xxhash

_DIGEST_BYTES = 16


class BadFile(ValueError):
    """The file is cut, altered, too long, or of another format."""


# -- reading and writing ------------------------------------------------------------------------------------------


def part_of(path: Path) -> Path:
    """The name under which the next content of `path` is written."""
    return path.with_name(f"{path.name}.part")


def private(path: str, flags: int) -> int:
    """An `opener` for new files that only this user can read: the files hold names of objects.

    The file is always created. An existing one is removed first: in a directory that other users may write to, as an
    emptyDir, it may be a link, or readable for them.
    """
    flags |= os.O_EXCL | os.O_NOFOLLOW
    try:
        return os.open(path, flags, 0o600)
    except FileExistsError:
        os.unlink(path)  # noqa: PTH108 - an opener gets a str
        return os.open(path, flags, 0o600)


def read(path: Path, bytes_max: int) -> bytes:
    """Blocks.

    Raises:
        BadFile: longer than `bytes_max`, so this program did not write it.
        OSError
    """
    if path.stat().st_size > bytes_max:
        raise BadFile("too long")
    return path.read_bytes()


def newest_first(paths: Sequence[Path]) -> list[Path]:
    """The copies of a file on several disks, the one with the newest content first. Blocks."""
    written = dict.fromkeys(paths, 0.0)
    for path in paths:
        with suppress(OSError):
            written[path] = path.stat().st_mtime
    return sorted(paths, key=written.__getitem__, reverse=True)


async def write_part(path: Path, pieces: Iterable[bytes], threads: Executor, *, durable: bool = False) -> Path:
    """Write `pieces` to the temporary file of `path` and return its name; the caller renames it. Raises OSError.

    `pieces` is consumed in a thread. `durable`: the content is on the disk when this returns.
    """
    part = part_of(path)
    async with aiofiles.open(part, "wb", executor=threads, opener=private) as file:
        await file.writelines(pieces)
        if durable:
            await file.flush()
            await asyncio.get_running_loop().run_in_executor(threads, os.fsync, file.fileno())
    return part


async def write(
    path: Path, pieces: Iterable[bytes], threads: Executor, *, durable: bool = False, at: float | None = None
) -> None:
    """Replace the content of `path`. Raises OSError; the older content then stays.

    `durable`: the new content outlives a power loss from here on. Without it a power loss may leave a file that is cut;
    the next read finds that out by its format. `at`: the wall-clock time of the content, for `newest_first`; None: now.
    """
    part = await write_part(path, pieces, threads, durable=durable)
    await asyncio.get_running_loop().run_in_executor(threads, _put, part, path, durable, at)


def _put(part: Path, path: Path, durable: bool, at: float | None) -> None:
    if at is not None:
        os.utime(part, (at, at))
    part.replace(path)
    if durable:
        sync_directory(path.parent)


def sync_directory(folder: Path) -> None:
    """Renames and removals in `folder` outlive a power loss when this returns. Blocks. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of `path` when the context ends without an error. Blocks."""
    part = part_of(path)
    with open(part, "wb", opener=private) as file:
        yield file
    part.replace(path)


# -- formats ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """`{"format": VERSION, NAME: [...]}`. There is no checksum: a file that was cut is not JSON any more."""

    name: str
    version: int

    def encode(self, entries: list[Any]) -> bytes:
        # ASCII: the bytes of a key that are not UTF-8 stay escapes.
        return json.dumps({"format": self.version, self.name: entries}).encode("ascii")

    def decode(self, raw: bytes) -> list[Any]:
        """Raises BadFile."""
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise BadFile(f"not JSON: {error}") from error
        if not isinstance(document, dict) or document.get("format") != self.version:
            raise BadFile("of another format")
        entries = document.get(self.name)
        if not isinstance(entries, list):
            raise BadFile(f"no list of {self.name}")
        return entries


class DigestFormat:
    """The XXH3-128 digest of the payload, 16 bytes, then the payload, which names its own version."""

    def encode(self, payload: bytes) -> bytes:
        return xxhash.xxh3_128_digest(payload) + payload

    def decode(self, raw: bytes) -> bytes:
        """Raises BadFile."""
        digest, payload = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        if xxhash.xxh3_128_digest(payload) != digest:
            raise BadFile("the checksum does not match")
        return payload


@dataclass(frozen=True, slots=True)
class LinesFormat:
    """Lines of JSON: the head `{NAME: VERSION}`, the payload, then `{"xxh3": DIGEST}` over all lines before it."""

    name: str
    version: int

    def encode(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """The whole file in pieces; each of `lines` ends with a newline."""
        digest = xxhash.xxh3_64()
        head = json_line({self.name: self.version})
        digest.update(head)
        yield head
        for line in lines:
            digest.update(line)
            yield line
        yield json_line({"xxh3": digest.hexdigest()})

    def decode(self, raw: bytes) -> Iterator[bytes]:
        """The lines of the payload. Raises BadFile."""
        body, newline, last = raw.rstrip(b"\n").rpartition(b"\n")
        try:
            if json.loads(last) != {"xxh3": xxhash.xxh3_64(body + newline).hexdigest()}:
                raise BadFile("the checksum does not match")
            lines = io.BytesIO(body)
            if json.loads(lines.readline()) != {self.name: self.version}:
                raise BadFile("of another format")
        except (ValueError, RecursionError) as error:
            raise error if isinstance(error, BadFile) else BadFile(repr(error)) from error
        return iter(lines)


def json_line(value: object) -> bytes:
    """One line of JSON. ASCII: the bytes of a key that are not UTF-8 stay escapes."""
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
