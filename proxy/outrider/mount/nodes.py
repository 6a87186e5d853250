"""The files and directories of a mount, as far as they are known."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count
from math import inf
from typing import TypeVar

from outrider.core.s3.list_page import ListedObject
from outrider.mount.listed import FileVersion, Told
from outrider.mount.messages import NAME_BYTES_MAX, Attributes

ROOT = 1
_NANOSECONDS = 1_000_000_000


class File:
    """One version of an object. Another version is another file with a number of its own, so that the kernel never
    takes the pages, or the reader, of one for those of the other."""

    __slots__ = (
        "checked_at", "etag", "is_child", "is_settled", "key", "lookups", "number", "parent", "reads_at", "size",
        "time_ns",
    )  # fmt: skip

    def __init__(self, number: int, key: str, parent: Directory) -> None:
        self.number = number
        self.key = key
        self.parent = parent
        self.size = 0
        self.etag = ""
        self.time_ns = 0
        # The object told its version. False: a LIST did, and no byte was read by it.
        self.is_settled = False
        self.checked_at = 0.0
        # Where a reader that goes on would read next.
        self.reads_at = 0
        self.lookups = 0
        self.is_child = False

    def learn(self, told: Told, now: float, *, settled: bool) -> None:
        """`settled`: by the object itself, and not by a LIST."""
        self.size = told.size if told.size >= 0 else self.size
        self.etag, self.checked_at = told.etag or self.etag, now
        self.is_settled = self.is_settled or settled
        # Programs compare the times of files. Two versions within a second differ in the ETag only, so the ETag makes
        # the fraction of the second. HEAD tells whole seconds, LIST may tell more.
        self.time_ns = told.seconds * _NANOSECONDS + zlib.crc32(self.etag.encode()) % _NANOSECONDS

    @property
    def told(self) -> Told:
        return Told(self.size, self.etag, self.time_ns // _NANOSECONDS)

    @property
    def version(self) -> FileVersion:
        return FileVersion(self.size, self.etag, self.is_settled, self.time_ns // _NANOSECONDS)

    @property
    def name(self) -> str:
        return self.key[len(self.parent.prefix) :]

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.number, False, self.size, self.time_ns)


class Directory:
    __slots__ = ("children", "heads_until", "is_child", "listed_at", "lookups", "number", "prefix")

    def __init__(self, number: int, prefix: str) -> None:
        self.number = number
        self.prefix = prefix
        self.children: dict[str, Node] = {}
        # None: never, so `children` are those that were looked up.
        self.listed_at: float | None = None
        # Until then its names are asked for one by one, and not by a LIST.
        self.heads_until = -inf
        self.lookups = 0
        self.is_child = False

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.number, True, 0, 0)


Node = File | Directory
"""`lookups`: how often the kernel was told of it, less what it has forgotten. `is_child`: its directory has it."""

N = TypeVar("N", bound=Node)


class Nodes:
    """All nodes by number: those that are children of their directory, and those that the kernel knows. Numbers are not
    used again."""

    def __init__(self, prefix: str) -> None:
        self._numbers = count(ROOT)
        self._by_number: dict[int, Node] = {}
        self.file_bytes = 0
        """The sizes of all files in it."""
        self.root = self._add(Directory(next(self._numbers), prefix))

    def __getitem__(self, number: int) -> Node:
        """Raises KeyError: the kernel names a node that was forgotten."""
        return self._by_number[number]

    def __len__(self) -> int:
        return len(self._by_number)

    def told(self, node: Node) -> None:
        """The kernel is told of this node by a reply."""
        node.lookups += 1
        if node.number not in self._by_number:
            self._by_number[node.number] = node
            self._count(node, 1)

    def forgotten(self, number: int, lookups: int) -> None:
        """The kernel forgets so many of the replies that told it of this node."""
        if (node := self._by_number.get(number)) is not None:
            node.lookups -= lookups
            self._leave(node)

    def shown_files(self) -> list[File]:
        """The files that the kernel knows."""
        return [node for node in self._by_number.values() if isinstance(node, File) and node.lookups > 0]

    def file(self, parent: Directory, name: str, told: Told, now: float, *, settled: bool) -> File:
        """The file that has this version; a new one if there was none. `settled`: see `File.learn`."""
        known = parent.children.get(name)
        if not (isinstance(known, File) and known.told.is_version(told)):
            known = File(next(self._numbers), parent.prefix + name, parent)
            self._put(parent, name, known)
        self.learn(known, told, now, settled=settled)
        return known

    def learn(self, file: File, told: Told, now: float, *, settled: bool) -> None:
        """See `File.learn`."""
        before = file.size
        file.learn(told, now, settled=settled)
        if file.number in self._by_number:
            self.file_bytes += file.size - before

    def _count(self, node: Node, times: int) -> None:
        if isinstance(node, File):
            self.file_bytes += times * node.size

    def directory(self, parent: Directory, name: str) -> Directory:
        known = parent.children.get(name)
        if not isinstance(known, Directory):
            known = Directory(next(self._numbers), f"{parent.prefix}{name}/")
            self._put(parent, name, known)
        return known

    def remove(self, parent: Directory, name: str) -> None:
        """There is no such name any more. Does nothing if there was none."""
        if (node := parent.children.pop(name, None)) is not None:
            node.is_child = False
            self._leave(node)

    def _put(self, parent: Directory, name: str, node: Node) -> None:
        self.remove(parent, name)
        parent.children[name] = self._add(node)

    def _add(self, node: N) -> N:
        node.is_child = True
        self._by_number[node.number] = node
        return node

    def _leave(self, node: Node) -> None:
        """Drop a node that is no child and that the kernel does not know, with what is in it."""
        leaving = [node]
        while leaving:
            node = leaving.pop()
            if node.is_child or node.lookups > 0:
                continue
            if self._by_number.pop(node.number, None) is not None:
                self._count(node, -1)
            if isinstance(node, Directory):
                for child in node.children.values():
                    child.is_child = False
                    leaving.append(child)
                node.children.clear()


class Listing:
    """Takes the pages of a LIST of `directory` with a delimiter; `done` puts them in place of what was known."""

    def __init__(self, nodes: Nodes, directory: Directory, now: float) -> None:
        self._nodes = nodes
        self._directory = directory
        self._began_at = now
        self._names: set[str] = set()

    def take(self, objects: Iterable[ListedObject], groups: Iterable[str], now: float) -> None:
        """`now`: when the page was asked for."""
        prefix = self._directory.prefix
        for group in groups:
            self._take_directory(group.removeprefix(prefix).removesuffix("/"))
        for listed in objects:
            # Some stores take the prefix for a hint, or ignore the delimiter.
            if listed.key.startswith(prefix):
                name, slash, _ = listed.key[len(prefix) :].partition("/")
                if slash:
                    self._take_directory(name)
                else:
                    self._take_file(name, Told.of(listed.size, listed.etag, _date(listed.modified)), now)

    def _take_directory(self, name: str) -> None:
        if is_name(name):
            self._nodes.directory(self._directory, name)
            self._names.add(name)

    def _take_file(self, name: str, told: Told, now: float) -> None:
        known = self._directory.children.get(name)
        # A directory hides an object of the same name, as one path is one of the two.
        if not is_name(name) or isinstance(known, Directory):
            return
        self._names.add(name)
        if known is None or not known.is_settled or known.told.is_version(told):
            self._nodes.file(self._directory, name, told, now, settled=False)
        elif known.checked_at <= now:
            # It was put again, or the LIST is wrong: the object itself is asked at the next look.
            known.checked_at = -inf

    def done(self) -> None:
        children = self._directory.children
        for name in children.keys() - self._names:
            child = children[name]
            # A HEAD may have found it after its page was made.
            if not (isinstance(child, File) and child.checked_at > self._began_at):
                self._nodes.remove(self._directory, name)
        self._directory.listed_at = self._began_at


def is_name(name: str) -> bool:
    """Whether a part of a key can be a name in a directory."""
    return (
        name not in ("", ".", "..") and "/" not in name and "\0" not in name
        and len(packed_name(name)) <= NAME_BYTES_MAX
    )  # fmt: skip


def packed_name(name: str) -> bytes:
    """As the kernel has it. Keys are UTF-8 in any locale."""
    return name.encode("utf-8", "surrogateescape")


def _date(iso: str) -> datetime | None:
    try:
        return datetime.fromisoformat(iso).astimezone(UTC)
    except ValueError:
        return None
