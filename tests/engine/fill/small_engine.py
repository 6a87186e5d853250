"""Versions and flights of an engine, for tests of fills."""

from __future__ import annotations

import os

from outrider.adapters.disk import block_io
from outrider.core.block_layout import BlockLayout
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.engine.fill.flight import Flight
from tests.support.engine import BLOCK, REF, Engine
from tests.support.fakes import RAMP

DATA = RAMP[: 4 * BLOCK]
LAYOUT = BlockLayout("http://fake", BLOCK)


async def here(lead: Flight, offset: int) -> int:
    """Wait for the byte at `offset`, and return the end of the run of bytes from there on."""
    early = await lead.bytes_at(offset)
    return lead.reach(offset) if early is None else offset + len(early)


def version_in(room: Engine, ref: ObjectRef = REF, size: int = len(DATA)) -> ObjectVersion:
    etag = room.origin.objects[ref].etag
    assert etag is not None
    return ObjectVersion(ref, etag, size)


def key_of(version: ObjectVersion, index: int) -> BlockKey:
    return LAYOUT.key(version, index)


def payload_in(room: Engine, key: BlockKey) -> bytes:
    """The content of the block's file, after its checksum was verified."""
    path = room.store.disks[0].directory.path_of(key)
    fd, offset = block_io.open_block(path, key, True)
    os.close(fd)
    return path.read_bytes()[offset:]
