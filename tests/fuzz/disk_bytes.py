"""Targets: files of the cache directory, damaged, or with nonsense under a right checksum.

Each is read, or refused with its one error.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from dataclasses import replace
from typing import Any

import xxhash

from outrider.adapters.disk import index_snapshot, snapshot_page
from outrider.adapters.sealed_file import BadFile, DigestFormat, JsonFormat, LinesFormat
from outrider.adapters.state import pin_file, warmup_file
from outrider.core.ahead.dataset import saved_datasets
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import PAGE_BYTES, BadBlock, BlockMeta
from outrider.core.cluster.believed_list import members_from_json, members_to_json
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.ports import Belief
from tests.fuzz.target import target

_META = BlockMeta(
    BlockLayout("http://o", 4096), ObjectVersion(ObjectRef("b", "k\udcff"), '"e"', 10, (("content-type", "a/b"),)), 0
)
_WRITTEN = block_file.Header(_META).sealed(b"c" * 16)


def sealed_header(meta: bytes, checksum: bytes = b"c" * 16) -> bytes:
    """A block file's header around any `meta`, with a right checksum, in the format that has no name. Rot cannot make
    such a header; a bug of ours could."""
    fixed = block_file._PAGED
    length = -(-(fixed.size + len(meta)) // PAGE_BYTES) * PAGE_BYTES
    unsealed = fixed.pack(b"OUTRIDER", 1, length, len(meta), checksum, bytes(8))
    seal = xxhash.xxh3_64(unsealed + meta).digest()
    return (unsealed[:-8] + seal + meta).ljust(length, b"\0")


@target(_WRITTEN.rstrip(b"\0"), bytes_max=2 * PAGE_BYTES)
def header_of_a_block(data: bytes) -> None:
    """Damage is found, or the header describes a block. A fuzzer makes right checksums: it sees what is compared."""
    block_file.digest_of(data)
    with suppress(BadBlock):
        meta, checksum = block_file.decode_header(data.ljust(PAGE_BYTES, b"\0"))
        assert block_file.decode_header(block_file.Header(meta).sealed(checksum)) == (meta, checksum)


@target(block_file.meta_json(_META), bytes_max=2 * PAGE_BYTES)
def header_of_a_block_sealed(data: bytes) -> None:
    """A block that is described is described the same when its header is written anew."""
    try:
        meta, checksum = block_file.decode_header(sealed_header(data))
    except BadBlock:
        return
    assert meta.key
    header = block_file.Header(meta)
    again = header.sealed(checksum)
    assert block_file.payload_offset_in(again, meta.key) == header.length
    assert block_file.decode_header(again) == (meta, checksum)
    assert header.disk_bytes >= PAGE_BYTES


_FACTS = index_snapshot.SnapshotFacts(
    lambda: 9.5, lambda _, version: Belief(replace(version, headers=()), 2.5, vouched=True), lambda *_: ["crc", 7],
    [(ObjectRef("b", "k"), 10.0), ("b", 11.5)],
)  # fmt: skip
_SNAPSHOT = b"".join(index_snapshot.encode([_META, _META], _FACTS))


_HEAD, _PAGE = _SNAPSHOT.split(b"\n")[1:-2]


@target(_SNAPSHOT, _HEAD + b"\n" + _PAGE.partition(b" ")[2])
def snapshot_of_the_index(data: bytes) -> None:
    """Nonsense under a right checksum is a snapshot that can be written anew, or a bad file."""
    with suppress(BadFile):
        index_snapshot.decode(data)
    head, *pages = [line + b"\n" for line in data.split(b"\n")]
    lines = [head, *map(snapshot_page.sealed, pages)]
    try:
        metas = [meta for meta, *_ in index_snapshot.decode(b"".join(LinesFormat("outrider index", 5).encode(lines)))]
    except BadFile:
        return
    for meta in metas:
        assert meta.key
        assert meta.extent.length > 0
    again = index_snapshot.decode(b"".join(index_snapshot.encode(metas)))
    assert [meta for meta, *_ in again] == metas


_DATASET: dict[str, Any] = {
    "bucket": "b", "template": "a-{}.tar", "keys": ["a-0.tar", "a-1.tar"], "sizes": [1, -1], "listed": [0, 1],
    "counted": False, "orders": [{"keys": [1, 0], "period_s": 1.5}],
}  # fmt: skip
_MEMBERS = members_to_json(members_from_json({"members": [
    {"name": "n", "address": "a:1", "zone": "z", "weight_bytes": 7, "cluster_id": "c", "wire": [1, 1]}
]}))  # fmt: skip
_PIN = {"owner": "o", "client": "c", "name": "n", "body": "s3://b/k", "at": 1.5, "objects": [[["b", "k"], '"e"', 5]]}
_WARMUP = {"owner": "o", "name": "n", "body": "s3://b/k", "at": 1.5, "bytes_per_s": 0.0}


@target(
    *(json.dumps(file).encode() for file in (
        {"format": 1, "datasets": [_DATASET]}, {"format": 1, "members": [_MEMBERS]}, {"format": 1, "pins": [_PIN]},
        {"format": 1, "warmups": [_WARMUP]},
    )),
    bytes_max=16384,
)  # fmt: skip
def state_file(data: bytes) -> None:
    """The small state files: learned orders, members, pins, warm-ups."""
    with suppress(BadFile):
        DigestFormat().decode(data)
    with suppress(ValueError):
        for dataset in saved_datasets.unpacked(zlib.compress(data, 1)):
            assert saved_datasets.unpacked(saved_datasets.packed([dataset])) is not None
    for read, name in ((_pins, "pins"), (_members, "members"), (_warmups, "warmups")):
        try:
            entries = JsonFormat(name, 1).decode(data)
        except BadFile:
            continue
        read(entries)


def _pins(entries: list[Any]) -> None:
    with suppress(OSError, ValueError, TypeError, KeyError):
        for pin in map(pin_file.pin_of, entries):
            pin.body.encode("utf-8", "surrogateescape")
            for (bucket, key), _ in pin.objects:
                (bucket + key).encode("utf-8", "surrogateescape")


def _members(entries: list[Any]) -> None:
    members = list(members_from_json(next(iter(entries), None)))
    assert list(members_from_json(members_to_json(members))) == members


def _warmups(entries: list[Any]) -> None:
    with suppress(OSError, ValueError, TypeError):
        list(map(warmup_file.warmup_of, entries))
