"""The files and directories of a mount, as far as they are known. The object of a file lives while somebody uses it:
all that is known of it stands in a row of `FileRows`."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from itertools import count
from math import inf
from weakref import ReferenceType, ref

from outrider.mount.file_rows import FileRows
from outrider.mount.listed import FileVersion, ObjectFacts
from outrider.mount.messages import NAME_BYTES_MAX, Attributes

ROOT = 1
_NANOSECONDS = 1_000_000_000


class File:
    """One version of an object. Another version is another file with a number of its own, so that the kernel never
    takes the pages, or the reader, of one for those of the other. There is at most one of these for a file at any
    time."""

    __slots__ = ("__weakref__", "_nodes", "_row", "_rows", "number")

    def __init__(self, nodes: MountNodes, row: int) -> None:
        self._nodes = nodes
        self._rows = nodes.files
        self._row = row
        self.number = self._rows.number_of(row)

    def __del__(self) -> None:
        self._nodes.unused(self._row)

    @property
    def parent(self) -> Directory:
        return self._nodes.parent_of(self._row)

    @property
    def name(self) -> str:
        return self._rows.name_of(self._row).decode("utf-8", "surrogateescape")

    @property
    def key(self) -> str:
        return self.parent.prefix + self.name

    @property
    def size(self) -> int:
        return self._rows.sizes[self._row]

    @property
    def etag(self) -> str:
        return self._rows.etag_of(self._row)

    @property
    def time_ns(self) -> int:
        # Programs compare the times of files. Two versions within a second differ in the ETag only, so the ETag makes
        # the fraction of the second. HEAD states whole seconds, LIST may state more.
        return self._rows.seconds[self._row] * _NANOSECONDS + zlib.crc32(self.etag.encode()) % _NANOSECONDS

    @property
    def is_settled(self) -> bool:
        """The object itself showed its version. False: a LIST did, and no byte was read by it."""
        return self._rows.is_settled(self._row)

    @property
    def is_child(self) -> bool:
        """Its directory has it."""
        return self._rows.is_child(self._row)

    @property
    def checked_at(self) -> float:
        return self._rows.checked_at[self._row]

    @checked_at.setter
    def checked_at(self, at: float) -> None:
        self._rows.checked_at[self._row] = at

    @property
    def reads_at(self) -> int:
        """Where a reader that goes on would read next."""
        return self._rows.reads_at[self._row]

    @reads_at.setter
    def reads_at(self, at: int) -> None:
        self._rows.reads_at[self._row] = at

    def settle(self) -> None:
        """See `is_settled`."""
        self._rows.settle(self._row)

    def learn(self, facts: ObjectFacts, now: float, *, settled: bool) -> None:
        """`settled`: by the object itself, and not by a LIST."""
        self._rows.learn(self._row, facts, now)
        if settled:
            self.settle()

    @property
    def facts(self) -> ObjectFacts:
        return ObjectFacts(self.size, self.etag, self._rows.seconds[self._row])

    @property
    def version(self) -> FileVersion:
        return FileVersion(self.size, self.etag, self.is_settled, self._rows.seconds[self._row])

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.number, False, self.size, self.time_ns)


class Directory:
    """`lookups`: how often the kernel was shown it, less what it has forgotten. `is_child`: its parent has it."""

    __slots__ = ("directories", "files", "heads_until", "is_child", "listed_at", "listing", "lookups", "members",
                 "number", "prefix")  # fmt: skip

    def __init__(self, number: int, prefix: str) -> None:
        self.number = number
        self.prefix = prefix
        self.directories: dict[str, Directory] = {}
        # The numbers of what is in it, in the order in which it was met. Some are of what has gone since.
        self.members = array("Q")
        # How many rows of files name it as their parent.
        self.files = 0
        # None: never, so its members are those that were looked up.
        self.listed_at: float | None = None
        # Until then its names are requested one by one, and not by a LIST.
        self.heads_until = -inf
        self.lookups = 0
        self.is_child = False
        # The number of the LIST of its parent that showed it last.
        self.listing = 0

    @property
    def name(self) -> str:
        return self.prefix[self.prefix.rfind("/", 0, -1) + 1 : -1]

    @property
    def is_known(self) -> bool:
        return self.is_child or self.lookups > 0

    @property
    def attributes(self) -> Attributes:
        return Attributes(self.number, True, 0, 0)


Node = File | Directory


class MountNodes:
    """All nodes by number: those that are children of their directory, and those that the kernel knows. Numbers are not
    used again. Files have even numbers."""

    def __init__(self, prefix: str) -> None:
        self._directory_numbers = count(ROOT, 2)
        self._directories: dict[int, Directory] = {}
        self.files = FileRows()
        self._live: dict[int, ReferenceType[File]] = {}
        self.listing_numbers = count(1)
        # While directories are open for reading, the names of files that have gone from them: another version may have
        # taken their place.
        self._readers = 0
        self._gone: dict[int, str] = {}
        self.root = self._new_directory(prefix)

    def __getitem__(self, number: int) -> Node:
        """Raises KeyError: the kernel names a node that was forgotten."""
        node = self._directories.get(number) if number % 2 else self._file_at(number)
        if node is None or (isinstance(node, Directory) and not node.is_known):
            raise KeyError(number)
        return node

    def __len__(self) -> int:
        return self.files.known + sum(directory.is_known for directory in self._directories.values())

    # -- what the kernel knows ----------------------------------------------------------------------------------

    def shown(self, node: Node) -> None:
        """The kernel is shown this node by a reply."""
        if isinstance(node, Directory):
            node.lookups += 1
            self._directories[node.number] = node
        else:
            self.files.lookups[node._row] += 1
            self.files.know(node._row)

    def forgotten(self, number: int, lookups: int) -> None:
        """The kernel forgets so many of the replies that showed it this node."""
        if number % 2:
            if (directory := self._directories.get(number)) is not None:
                directory.lookups -= lookups
                self._leave(directory)
        elif (row := self.files.row_of(number)) >= 0:
            self.files.lookups[row] = max(0, self.files.lookups[row] - lookups)
            self._leave_row(row)

    def shown_files(self) -> Iterator[File]:
        """The files that the kernel knows, of those that there are now. They may come and go meanwhile."""
        return (self._file(row) for row in range(len(self.files)) if self.files.lookups[row])

    # -- names --------------------------------------------------------------------------------------------------

    def child(self, parent: Directory, name: str) -> Node | None:
        directory = parent.directories.get(name)
        if directory is not None:
            return directory
        row = self.files.find(parent.number, packed_name(name))
        return None if row < 0 else self._file(row)

    def children(self, parent: Directory) -> array[int]:
        """The numbers of what is in it, in the order in which it was met."""
        parent.members = array("Q", [number for number in parent.members if self._is_child(number)])
        return array("Q", parent.members)

    def opened(self, parent: Directory) -> array[int]:
        """As `children`, for `member`, until `closed`."""
        self._readers += 1
        return self.children(parent)

    def closed(self) -> None:
        self._readers -= 1
        if not self._readers:
            self._gone.clear()

    def member(self, parent: Directory, number: int) -> Node | None:
        """A member that an open directory had; another version, if that has taken its place. None: it is gone."""
        try:
            return self[number]
        except KeyError:
            name = self._gone.get(number)
            return None if name is None else self.child(parent, name)

    def _is_child(self, number: int) -> bool:
        if number % 2:
            directory = self._directories.get(number)
            return directory is not None and directory.is_child
        row = self.files.row_of(number)
        return row >= 0 and self.files.is_child(row)

    def file(self, parent: Directory, name: str, facts: ObjectFacts, now: float, *, settled: bool) -> File:
        """The file that has this version; a new one if there was none. `settled`: see `File.learn`."""
        known = self.child(parent, name)
        if not (isinstance(known, File) and known.facts.is_version(facts)):
            self.remove(parent, name)
            row = self.files.add(parent.number, packed_name(name))
            parent.files += 1
            known = self._file(row)
            parent.members.append(known.number)
        known.learn(facts, now, settled=settled)
        return known

    def directory(self, parent: Directory, name: str) -> Directory:
        known = parent.directories.get(name)
        if known is None:
            self.remove(parent, name)
            known = parent.directories[name] = self._new_directory(f"{parent.prefix}{name}/")
            parent.members.append(known.number)
        return known

    def remove(self, parent: Directory, name: str) -> None:
        """There is no such name any more. Does nothing if there was none."""
        directory = parent.directories.pop(name, None)
        if directory is not None:
            directory.is_child = False
            self._leave(directory)
        elif (row := self.files.find(parent.number, packed_name(name))) >= 0:
            self._orphan(row)

    def drop_unlisted(self, directory: Directory, listing: int, began_at: float) -> None:
        """Remove what is in `directory` and was not in this LIST of it, which began at that moment."""
        for number in self.children(directory):
            if number % 2:
                if self._directories[number].listing != listing:
                    self.remove(directory, self._directories[number].name)
            # A HEAD may have found it after its page was made.
            elif self.files.is_unlisted(row := self.files.row_of(number), listing, began_at):
                self._orphan(row)

    def note_listed(self, node: Node, listing: int) -> None:
        """The LIST has shown it."""
        if isinstance(node, Directory):
            node.listing = listing
        else:
            self.files.listings[node._row] = listing

    # -- rows of files ------------------------------------------------------------------------------------------

    def _file_at(self, number: int) -> File | None:
        row = self.files.row_of(number)
        return None if row < 0 else self._file(row)

    def _file(self, row: int) -> File:
        known = self._live.get(row)
        file = None if known is None else known()
        if file is None:
            file = File(self, row)
            self._live[row] = ref(file)
        return file

    def parent_of(self, row: int) -> Directory:
        return self._directories[self.files.parents[row]]

    def _orphan(self, row: int) -> None:
        """Its directory has it no more."""
        if self._readers:
            self._gone[self.files.number_of(row)] = self.files.name_of(row).decode("utf-8", "surrogateescape")
        self.files.orphan(row)
        self._leave_row(row)

    def _leave_row(self, row: int) -> None:
        """Forget a file that is no child and that the kernel does not know."""
        if self.files.leave(row) and row not in self._live:
            self._free(row)

    def unused(self, row: int) -> None:
        """The object of the file is used no more."""
        self._live.pop(row, None)
        if not self.files.is_known(row):
            self._free(row)

    def _free(self, row: int) -> None:
        parent = self.parent_of(row)
        parent.files -= 1
        self._drop_if_unused(parent)
        self.files.free(row)

    # -- directories --------------------------------------------------------------------------------------------

    def _new_directory(self, prefix: str) -> Directory:
        directory = Directory(next(self._directory_numbers), prefix)
        directory.is_child = True
        self._directories[directory.number] = directory
        return directory

    def _leave(self, directory: Directory) -> None:
        """Drop a directory that is no child and that the kernel does not know, with what is in it."""
        leaving = [directory]
        while leaving:
            directory = leaving.pop()
            if directory.is_known:
                continue
            for number in self.children(directory):
                if (row := -1 if number % 2 else self.files.row_of(number)) >= 0:
                    self._orphan(row)
            for child in directory.directories.values():
                child.is_child = False
                leaving.append(child)
            directory.directories.clear()
            directory.members = array("Q")
            self._drop_if_unused(directory)

    def _drop_if_unused(self, directory: Directory) -> None:
        if not directory.is_known and not directory.files:
            self._directories.pop(directory.number, None)


def is_name(name: str) -> bool:
    """Whether a part of a key can be a name in a directory."""
    return (
        name not in ("", ".", "..") and "/" not in name and "\0" not in name
        and len(packed_name(name)) <= NAME_BYTES_MAX
    )  # fmt: skip


def packed_name(name: str) -> bytes:
    """As the kernel has it. Keys are UTF-8 in any locale."""
    return name.encode("utf-8", "surrogateescape")
