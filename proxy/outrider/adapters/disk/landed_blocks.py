"""The file `landed`: of most blocks on a disk what a scan after a crash would read from their headers.

It is the snapshot of the last stop under another name, and behind it pages of the blocks that landed since, in the same
form (see `index_snapshot`). Blocks that left are not noted, and no write of this file is waited for: it only helps. The
scan lists the names of files. A file whose name a page has is indexed without being looked at; the header of any other
one is read, and a block without a file is passed over. The name of a file is a digest of the object, the version and
the block, so a page can describe no other content. All blocks are verified at their first use. Where some had no file,
the file of notes is removed after the scan, and all blocks are noted anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.index_snapshot import HEAD
from outrider.adapters.disk.snapshot_page import OpenPage, SavedPage, pages_in
from outrider.core.cache.block_file import block_name
from outrider.core.model import BlockKey, ObjectRef

# The file is begun anew when it has twice the blocks of the disk, and these.
_SPARE_BLOCKS = 64 * 1024


class LandedBlocks:
    """That of one disk. Its methods block."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = disk.directory.landed
        self.blocks = 0
        """How many its pages have, some of them more than once. 0: the file is to be begun."""
        self.found = 0
        """How many of them a scan has indexed."""
        self.is_behind = False
        """Blocks landed that it lacks."""

    @property
    def is_useless(self) -> bool:
        return self.is_behind or self.blocks > 2 * self._disk.blocks + _SPARE_BLOCKS

    def pages(self) -> Iterator[SavedPage]:
        """Those that are whole. Raises OSError."""
        with open(self._path, "rb", opener=_no_link) as file:
            for page in pages_in(file if file.readline() == HEAD else ()):
                self.blocks += len(page.numbers)
                yield page

    def drop_if_some_left(self) -> None:
        """After a scan. A block that left, and comes again, may have headers that no note has. Raises OSError."""
        if self.found != self.blocks:
            self._disk.directory.hold()
            self._path.unlink(missing_ok=True)
            self.is_behind = True

    def add_next(self, pages: Iterator[OpenPage]) -> bool:
        """False: there is none. Raises OSError."""
        if (page := next(pages, None)) is None:
            return False
        self._disk.directory.hold()
        if not self.blocks:
            self._path.unlink(missing_ok=True)
        with open(self._path, "ab", opener=_no_link) as file:
            # A crash may have cut the last line.
            file.write((b"\n" if file.tell() else HEAD) + page.line())
        self.blocks += page.blocks
        return True


def known_blocks(page: SavedPage, found: set[str], is_doubtful: Callable[[ObjectRef], bool]) -> SavedPage:
    """The blocks of a page whose names a scan has found, which leave `found`. Each is of a version of its own.
    `is_doubtful`: the object may have been written since."""
    numbers = page.numbers
    keys = map(BlockKey, map(page.ids.__getitem__, numbers), page.indexes)
    names = [block_name(key).hex() for key in keys]
    newer = set(filter(page.has_newer, page.more))
    places = [place for place, name in enumerate(names) if name in found and numbers[place] not in newer]
    found.difference_update(map(names.__getitem__, places))
    numbers = [numbers[place] for place in places]
    refs, packed = [page.refs[number] for number in numbers], [page.packed[number] for number in numbers]
    ids, proved = [page.ids[number] for number in numbers], [False] * len(numbers)
    known = [not is_doubtful(ref) for ref in refs]
    confirmed_at = [page.confirmed_at[number] if sure else None for number, sure in zip(numbers, known, strict=True)]
    vouched = [sure and page.vouched[number] for number, sure in zip(numbers, known, strict=True)]
    indexes, pages = [page.indexes[place] for place in places], [page.pages[place] for place in places]
    return SavedPage(
        page.layout, refs, packed, ids, confirmed_at, vouched, {}, proved, range(len(ids)), indexes, pages
    )  # fmt: skip


def _no_link(path: str, flags: int) -> int:
    """An `opener` for a file that only this user can read. It does not follow a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
