"""The files and directories of a mount, as far as they are known."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count
from typing import TypeVar

from outrider.core.s3.list_page import Listed
from outrider.mount.messages import Attributes

ROOT = 1
_NAME_BYTES_MAX = 255
_NANOSECONDS = 1_000_000_000


class File:
    __slots__ = ("checked_at", "etag", "key", "number", "parent", "reads_at", "size", "time_ns")

    def __init__(self, number: int, key: str, parent: Directory) -> None:
        self.number = number
        self.key = key
        self.parent = parent
        self.size = 0
        self.etag = ""
        self.time_ns = 0
        self.checked_at = 0.0
        # Where a reader that goes on would read next.
        self.reads_at = 0

    def learn(self, size: int, etag: str, modified: datetime | None, now: float) -> None:
        self.size, self.etag, self.checked_at = size, etag.strip('"'), now
        # The kernel drops a file's pages when its time changes. Two versions within a second differ in the ETag only,
        # so the ETag makes the fraction of the second. HEAD tells whole seconds, LIST may tell more.
        seconds = 0 if modified is None else int(modified.timestamp())
        self.time_ns = seconds * _NANOSECONDS + zlib.crc32(self.etag.encode()) % _NANOSECONDS

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.number, False, self.size, self.time_ns)


class Directory:
    __slots__ = ("children", "is_listable", "listed_at", "number", "prefix")

    def __init__(self, number: int, prefix: str) -> None:
        self.number = number
        self.prefix = prefix
        self.children: dict[str, Node] = {}
        # None: never, so `children` are those that were looked up.
        self.listed_at: float | None = None
        # Not if its last LIST failed.
        self.is_listable = True

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.number, True, 0, 0)


Node = File | Directory
N = TypeVar("N", File, Directory)


class Nodes:
    """All nodes by number. Numbers are not used again."""

    def __init__(self, prefix: str) -> None:
        self._numbers = count(ROOT)
        self._by_number: dict[int, Node] = {}
        self.root = self._add(Directory(next(self._numbers), prefix))

    def __getitem__(self, number: int) -> Node:
        """Raises KeyError: the kernel names a node that was forgotten."""
        return self._by_number[number]

    def forgotten(self, number: int) -> None:
        """The kernel does not know this node any more. One that the bucket still has is kept for the next look."""
        node = self._by_number.get(number)
        if isinstance(node, File) and node.parent.children.get(name_of(node)) is not node:
            del self._by_number[number]

    def file(self, parent: Directory, name: str) -> File:
        """The file of this name; a new one if it was none."""
        known = parent.children.get(name)
        if isinstance(known, File):
            return known
        made = self._add(File(next(self._numbers), parent.prefix + name, parent))
        parent.children[name] = made
        return made

    def directory(self, parent: Directory, name: str) -> Directory:
        known = parent.children.get(name)
        if isinstance(known, Directory):
            return known
        made = self._add(Directory(next(self._numbers), f"{parent.prefix}{name}/"))
        parent.children[name] = made
        return made

    def _add(self, node: N) -> N:
        self._by_number[node.number] = node
        return node


class Listing:
    """Takes the pages of a LIST of `directory` with a delimiter; `done` puts them in place of what was known."""

    def __init__(self, nodes: Nodes, directory: Directory, now: float) -> None:
        self._nodes = nodes
        self._directory = directory
        self._now = now
        self._names: set[str] = set()

    def take(self, objects: Iterable[Listed], groups: Iterable[str]) -> None:
        start = len(self._directory.prefix)
        for group in groups:
            if is_name(name := group[start:].removesuffix("/")):
                self._nodes.directory(self._directory, name)
                self._names.add(name)
        for listed in objects:
            # A directory hides an object of the same name, as one path is one of the two.
            if is_name(name := listed.key[start:]) and not isinstance(self._directory.children.get(name), Directory):
                file = self._nodes.file(self._directory, name)
                file.learn(max(0, listed.size), listed.etag, _date(listed.modified), self._now)
                self._names.add(name)

    def done(self) -> None:
        children = self._directory.children
        for name in children.keys() - self._names:
            del children[name]
        self._directory.listed_at = self._now


def name_of(file: File) -> str:
    return file.key[len(file.parent.prefix) :]


def is_name(name: str) -> bool:
    """Whether a part of a key can be a name in a directory."""
    return (
        name not in ("", ".", "..") and "/" not in name
        and len(name.encode("utf-8", "surrogateescape")) <= _NAME_BYTES_MAX
    )  # fmt: skip


def _date(iso: str) -> datetime | None:
    try:
        return datetime.fromisoformat(iso).astimezone(UTC)
    except ValueError:
        return None
