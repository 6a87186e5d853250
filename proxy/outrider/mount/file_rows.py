"""The table of a mount's files, in columns: some 120 bytes for each beside its name."""

from __future__ import annotations

from array import array
from functools import partial

from outrider.core.packed_version import MD5_BYTES, md5_of
from outrider.core.rows import FreeRows, RowIndex
from outrider.mount.listed import ObjectFacts

# `_KNOWN`: a child of its directory, or known to the kernel; else an object of Python alone uses it.
_KNOWN, _CHILD, _SETTLED, _MD5 = 1, 2, 4, 8
# Names that have gone are dropped from the letters once they are half of these, and more than so many.
DEAD_BYTES_MIN = 65536


class FileRows:
    """A row for each version of an object. Directories go by their numbers. The number of a file has its row, and how
    often the row was used before."""

    def __init__(self) -> None:
        self._rows = FreeRows()
        # By the hash of the directory's number and the name: files that their directory has.
        self._index = RowIndex()
        self._letters = bytearray()
        self._dead_bytes = 0
        self._starts, self._lengths, self._uses = array("Q"), array("H"), array("I")
        self._md5s = bytearray()
        # ETags that have another form.
        self._etags: dict[int, str] = {}
        self._flags = bytearray()
        self.parents, self.sizes, self.seconds, self.reads_at = array("Q"), array("Q"), array("q"), array("Q")
        self.checked_at = array("d")
        self.lookups = array("I")
        """How often the kernel was shown it, less what it has forgotten."""
        self.listings = array("I")
        """The number of the LIST that showed it last."""
        self.known = self.known_bytes = 0
        """How many files are known, and their sizes."""

    def __len__(self) -> int:
        """The rows, free ones included."""
        return self._rows.count

    def number_of(self, row: int) -> int:
        return 2 * (self._uses[row] << 32 | row) + 2

    def row_of(self, number: int) -> int:
        """-1: the file was forgotten."""
        uses, row = divmod(number // 2 - 1, 1 << 32)
        return row if 0 <= row < len(self) and self._uses[row] == uses and self.is_known(row) else -1

    def find(self, parent: int, name: bytes) -> int:
        """-1: the directory has no such file."""
        return self._index.find(hash((parent, name)), partial(self._is_named, parent, name))

    def _is_named(self, parent: int, name: bytes, row: int) -> bool:
        return (
            self.parents[row] == parent and self._lengths[row] == len(name)
            and self._letters.startswith(name, self._starts[row])
        )  # fmt: skip

    def add(self, parent: int, name: bytes) -> int:
        """The row of a new file that its directory has."""
        row, is_new = self._rows.take()
        if is_new:
            for column in (
                self._starts, self._lengths, self._uses, self.parents, self.lookups, self.sizes, self.seconds,
                self.reads_at, self.listings, self._flags,
            ):  # fmt: skip
                column.append(0)
            self.checked_at.append(0.0)
            self._md5s += bytes(MD5_BYTES)
        self._starts[row], self._lengths[row], self.parents[row] = len(self._letters), len(name), parent
        self._letters += name
        self.sizes[row] = self.seconds[row] = self.reads_at[row] = self.listings[row] = self.lookups[row] = 0
        self._flags[row] = _CHILD
        self.know(row)
        self._index.add(hash((parent, name)), row)
        return row

    def orphan(self, row: int) -> None:
        """Its directory has it no more."""
        self._index.discard(hash((self.parents[row], self.name_of(row))), row)
        self._flags[row] &= ~_CHILD

    def leave(self, row: int) -> bool:
        """Forget a file that is no child and that the kernel does not know. Returns whether it is one, and was not
        forgotten before."""
        is_leaving = self._flags[row] & (_KNOWN | _CHILD) == _KNOWN and not self.lookups[row]
        if is_leaving:
            self._flags[row] &= ~_KNOWN
            self.known -= 1
            self.known_bytes -= self.sizes[row]
        return is_leaving

    def free(self, row: int) -> None:
        """Nobody uses the row any more."""
        self._etags.pop(row, None)
        self._dead_bytes += self._lengths[row]
        self._lengths[row] = 0
        self._uses[row] += 1
        self._rows.give_back(row)
        if self._dead_bytes > max(DEAD_BYTES_MIN, len(self._letters) // 2):
            letters = bytearray()
            for each in range(len(self)):
                name = self.name_of(each)
                self._starts[each] = len(letters)
                letters += name
            self._letters, self._dead_bytes = letters, 0

    def know(self, row: int) -> None:
        if not self.is_known(row):
            self._flags[row] |= _KNOWN
            self.known += 1
            self.known_bytes += self.sizes[row]

    def is_known(self, row: int) -> bool:
        return self._flags[row] & _KNOWN != 0

    def is_child(self, row: int) -> bool:
        return self._flags[row] & _CHILD != 0

    def is_settled(self, row: int) -> bool:
        return self._flags[row] & _SETTLED != 0

    def settle(self, row: int) -> None:
        self._flags[row] |= _SETTLED

    def is_unlisted(self, row: int, listing: int, began_at: float) -> bool:
        """Whether this LIST, which began at that moment, did not show it, and no HEAD has since."""
        return self.listings[row] != listing and self.checked_at[row] <= began_at

    def name_of(self, row: int) -> bytes:
        start = self._starts[row]
        return bytes(self._letters[start : start + self._lengths[row]])

    def etag_of(self, row: int) -> str:
        if self._flags[row] & _MD5:
            return self._md5s[row * MD5_BYTES : (row + 1) * MD5_BYTES].hex()
        return self._etags.get(row, "")

    def learn(self, row: int, facts: ObjectFacts, now: float) -> None:
        if facts.size >= 0:
            if self.is_known(row):
                self.known_bytes += facts.size - self.sizes[row]
            self.sizes[row] = facts.size
        if facts.etag:
            md5 = md5_of(facts.etag)
            self._etags.pop(row, None)
            if md5:
                self._md5s[row * MD5_BYTES : (row + 1) * MD5_BYTES] = md5
                self._flags[row] |= _MD5
            else:
                self._etags[row] = facts.etag
                self._flags[row] &= ~_MD5
        self.seconds[row], self.checked_at[row] = facts.seconds, now
