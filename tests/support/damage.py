"""Damage to block files, as power loss and bit rot cause it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from outrider.core.cache.block_file import PAGE_BYTES, header_length

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path


def block_files(root: Path) -> list[Path]:
    """All block files of a cache directory, sorted by name."""
    return sorted(path for path in (root / "v2").glob("*/*") if path.is_file())


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def cut(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(chance.randrange(path.stat().st_size))


def empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def zero_some(path: Path, chance: random.Random) -> None:
    size = path.stat().st_size
    start = chance.randrange(size)
    put(path, start, bytes(chance.randint(1, size - start)))


def payload_offset(path: Path) -> int:
    """Where the payload begins in the file of a block."""
    with path.open("rb") as file:
        return header_length(file.read(PAGE_BYTES))


def zero_the_payload(path: Path, _: random.Random) -> None:
    offset = payload_offset(path)
    put(path, offset, bytes(path.stat().st_size - offset))


def zero_the_header(path: Path, _: random.Random) -> None:
    put(path, 0, bytes(payload_offset(path)))


def lose_the_payload(path: Path, _: random.Random) -> None:
    offset = payload_offset(path)
    with path.open("r+b") as file:
        file.truncate(offset)


def old_sectors(path: Path, chance: random.Random) -> None:
    """Replace one sector by other bytes, such as the disk held there before."""
    sector = chance.randrange(path.stat().st_size // 512)
    put(path, sector * 512, chance.randbytes(512))


def longer(path: Path, chance: random.Random) -> None:
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.randint(1, 5000)))


def another_block(path: Path, chance: random.Random) -> None:
    """The file's name is that of one block, its content that of another."""
    others = [other for other in path.parent.parent.glob("*/*") if other != path]
    shutil.copyfile(chance.choice(others), path)


def rename_lost(path: Path, _: random.Random) -> None:
    path.replace(path.parent.parent.parent / "tmp" / f"{path.name}.0")


def flip_a_bit(path: Path, chance: random.Random) -> None:
    """Flip one bit of the payload, or of the used part of the header."""
    size = path.stat().st_size
    used = path.read_bytes()[:PAGE_BYTES].rstrip(b"\0")
    position = chance.randrange(PAGE_BYTES, size) if chance.random() < 0.8 else chance.randrange(len(used))
    with path.open("rb") as file:
        file.seek(position)
        byte = file.read(1)[0]
    put(path, position, bytes([byte ^ (1 << chance.randrange(8))]))


AFTER_POWER_LOSS: dict[str, Callable[[Path, random.Random], None]] = {
    "a file cut at a random length": cut,
    "an empty file": empty,
    "a zeroed range": zero_some,
    "a header and zeros": zero_the_payload,
    "a payload without its header": zero_the_header,
    "a header without its payload": lose_the_payload,
    "old sectors in a file": old_sectors,
    "a file that is too long": longer,
    "one block in another's file": another_block,
    "a rename that was lost": rename_lost,
}
