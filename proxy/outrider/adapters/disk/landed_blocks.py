"""The file `landed`: of most blocks on a disk what a scan after a crash would read from their headers.

It is the snapshot of the last stop under another name, and behind it pages of the blocks that landed since, in the same
form (see `index_snapshot`). Blocks that left are not noted, and no write of this file is waited for: it only helps. The
scan lists the files. A file that a page describes, of that length and not changed since, is indexed without being read;
the header of any other one is read, and a block without a file is passed over. The name of a file is a digest of the
object, the version and the block, so a page can describe no other content. All blocks are verified at their first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from outrider.adapters.disk.block_io import FoundFile
from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.index_snapshot import HEAD
from outrider.adapters.disk.snapshot_page import OpenPage, SavedPage, pages_in
from outrider.core.cache.block_file import PAGE_BYTES, block_name
from outrider.core.cache.freshness import was_settled_at
from outrider.core.model import BlockKey, ObjectRef
from outrider.core.packed_version import PACKING

# The file is begun anew when it has twice the blocks of the disk, and these.
_SPARE_BLOCKS = 64 * 1024
# The kernel's clock for files may be a tick behind, which is 10 ms at most.
_TICK_S = 0.02


class LandedBlocks:
    """That of one disk. Its methods block."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._path = disk.directory.landed
        self.blocks = 0
        """How many its pages have, some of them more than once. 0: the file is to be begun."""
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

    def add(self, page: OpenPage) -> None:
        """Raises OSError."""
        self._disk.directory.hold()
        if not self.blocks:
            self._path.unlink(missing_ok=True)
        with open(self._path, "ab", opener=_no_link) as file:
            # A crash may have cut the last line.
            file.write((b"\n" if file.tell() else HEAD) + page.line())
        self.blocks += page.blocks


def known_files(page: SavedPage, found: dict[str, FoundFile], is_doubtful: Callable[[ObjectRef], bool]) -> SavedPage:
    """The blocks of a page whose files a scan has found, which leave `found`. Each is of a version of its own, with the
    time of its file. `is_doubtful`: the object may have been written since."""
    numbers, indexes, pages, confirmed_at, vouched = list[int](), list[int](), list[int](), list[float | None](), []
    for number, index, count in zip(page.numbers, page.indexes, page.pages, strict=True):
        name = block_name(BlockKey(page.ids[number], index)).hex()
        file = found.get(name)
        if file is None or file.disk_bytes != count * PAGE_BYTES or file.changed_at > page.written_at - _TICK_S:
            continue
        del found[name]
        numbers.append(number)
        indexes.append(index)
        pages.append(count)
        is_known = not is_doubtful(page.refs[number])
        confirmed_at.append(file.modified_at if is_known else None)
        vouched.append(is_known and was_settled_at(PACKING.modified_s(page.packed[number]), file.modified_at))
    refs, packed = [page.refs[number] for number in numbers], [page.packed[number] for number in numbers]
    ids, proved = [page.ids[number] for number in numbers], [False] * len(numbers)
    return SavedPage(
        page.layout, refs, packed, ids, confirmed_at, vouched, {}, proved, range(len(ids)), indexes, pages
    )  # fmt: skip


def _no_link(path: str, flags: int) -> int:
    """An `opener` for a file that only this user can read. It does not follow a link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
