"""Fuzz tests of all files in the cache directory, with right checksums: each is read, or refused with its one error."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from typing import Any

import pytest
import xxhash

from outrider.adapters.disk import index_snapshot
from outrider.adapters.sealed_file import BadFile, LinesFormat, json_line
from outrider.core.ahead.dataset import saved_datasets
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BadBlock
from outrider.core.model import ObjectRef, ObjectVersion
from tests.fuzz.disk_bytes import sealed_header

META: dict[str, Any] = {
    "origin": "http://o",
    "bucket": "b",
    "key": "k",
    "etag": '"e"',
    "size": 10,
    "headers": [["a", "b"]],
    "block_bytes": 4096,
    "index": 0,
}


ODD_METAS = [
    {"key": "\ud800"},
    {"headers": [["a", "\ud800"]]},
    {"headers": [["a", 1]]},
    {"size": "10"},
    {"index": True},
    {"key": 7},
    {"origin": "\udbff"},
    {"etag": "e"},
    {"block_bytes": 0},
]


@pytest.mark.parametrize("change", ODD_METAS)
def test_a_block_header_with_one_odd_field_is_a_bad_one(change: dict[str, Any]) -> None:
    assert block_file.decode_header(sealed_header(json.dumps(META).encode()))
    with pytest.raises(BadBlock):
        block_file.decode_header(sealed_header(json.dumps({**META, **change}).encode()))


@pytest.mark.parametrize("raw", [b"[" * 50_000, b'{"a":' * 10_000, b"9" * 5000, b"\xff"])
def test_a_block_header_of_any_depth_is_a_bad_one(raw: bytes) -> None:
    with pytest.raises(BadBlock):
        block_file.decode_header(sealed_header(raw))


VERSION: list[Any] = ["b", "k", "http://o", '"e"', 10, 4096, [["a", "b"]]]


def sealed_snapshot(lines: list[bytes], head: bytes = b'{"saved_at":1.5,"doubts":[[["b","k"],2],[["b"],3]]}') -> bytes:
    """`head` empty: a snapshot as older releases wrote it."""
    begin = [b'{"outrider index":3}', head] if head else [b'{"outrider index":2}']
    body = b"".join(line + b"\n" for line in [*begin, *lines])
    return body + json.dumps({"xxh3": xxhash.xxh3_64(body).hexdigest()}, separators=(",", ":")).encode() + b"\n"


@pytest.mark.parametrize("vouched", [True, False])
def test_a_snapshot_of_an_older_release_tells_of_all_blocks_and_of_no_confirmation(vouched: bool) -> None:
    for line, content in ((VERSION[:7], None), ([*VERSION[:7], vouched], None), ([*VERSION[:7], vouched, True], True)):
        found = index_snapshot.decode(sealed_snapshot([json.dumps(line).encode(), b"[0,0]"], b""))
        ((meta, disk_bytes, saved),) = found
        assert disk_bytes == block_file.paged_disk_bytes(meta)
        assert saved == (meta.version, None, vouched and len(line) > 7, content)
        assert (found.saved_at, found.doubts) == (0.0, [])


ODD = [
    b"[" * 50_000,
    b"[-1,0]",
    b"[[],0]",
    b'"ab"',
    b"[true,0]",
    b"[0,true]",
    b"[0,0.0]",
    b"[0,-1]",
    b"[1,0]",
    b"[0]",
    b"[0,0,0]",
    b"[0,0,-1]",
    b"[0,0,1.5]",
    b"[0,0,null]",
    b"0",
]


@pytest.mark.parametrize("line", ODD)
def test_a_snapshot_with_one_odd_line_is_a_bad_one(line: bytes) -> None:
    version = json.dumps(VERSION).encode()
    assert list(index_snapshot.decode(sealed_snapshot([version, b"[0,0]"])))
    with pytest.raises(BadFile):
        index_snapshot.decode(sealed_snapshot([version, line]))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 7),
        (1, None),
        (1, "\ud800"),
        (3, ["e"]),
        (4, "10"),
        (4, True),
        (5, 4096.0),
        (6, [["a", 1]]),
        (6, [["a", "\ud800"]]),
        (6, 3),
    ],
)
def test_a_snapshot_of_an_odd_version_is_a_bad_one(place: int, value: object) -> None:
    version = [*VERSION[:place], value, *VERSION[place + 1 :]]
    with pytest.raises(BadFile):
        index_snapshot.decode(sealed_snapshot([json.dumps(version).encode(), b"[0,0]"]))


@pytest.mark.parametrize(
    "fields", [["1"], [True], [1.5, [[["a", 1]], True]], [1.5, 7], [1.5, [[]]], [1.5, [[], True], "more"]]
)
def test_a_snapshot_of_an_odd_belief_is_a_bad_one(fields: list[object]) -> None:
    version = [*VERSION[:7], True, None, True]
    good = json.dumps([*version, 1.5, [[["a", "b"]], True]]).encode()
    assert list(index_snapshot.decode(sealed_snapshot([good, b"[0,0]"])))
    with pytest.raises(BadFile):
        index_snapshot.decode(sealed_snapshot([json.dumps([*version, *fields]).encode(), b"[0,0]"]))


@pytest.mark.parametrize(
    "head",
    [
        b"7",
        b"[]",
        b"{}",
        b'{"saved_at":"1","doubts":[]}',
        b'{"saved_at":1,"doubts":7}',
        b'{"saved_at":1,"doubts":[7]}',
        b'{"saved_at":1,"doubts":[[[],2]]}',
        b'{"saved_at":1,"doubts":[[[7],2]]}',
        b'{"saved_at":1,"doubts":[[["b","k","m"],2]]}',
        b'{"saved_at":1,"doubts":[[["b","k"],"2"]]}',
    ],
)
def test_a_snapshot_with_an_odd_head_is_a_bad_one(head: bytes) -> None:
    with pytest.raises(BadFile):
        index_snapshot.decode(sealed_snapshot([], head))


PAGE: dict[str, object] = {
    "layouts": [["o", 4096]], "frames": [["b", True, True, [["etag", ""], ["last-modified", ""]], [0], 1, []]],
    "packed": b64encode(b"\1\0\0\0" + (10).to_bytes(8, "little") + b"\1\0k" + bytes([1, 0, 0, 0]) + bytes(16)).decode(),
    "ids": b64encode(bytes(16)).decode(), "versions": [35, 0, 1.5, 1], "more": {}, "blocks": [0, 0, 1],
}  # fmt: skip
ODD_FIELDS = [
    ("layouts", []), ("layouts", [["o", 0]]), ("layouts", [[1, 4096]]), ("frames", []), ("frames", [["b"]]),
    ("frames", [["b", True, True, [["etag", 5]], [0], -1, []]]), ("frames", [["b", True, True, [], [0], -1, []]]),
    ("frames", [["b", True, True, [["etag", ""], ["last-modified", ""]], [0, 0], 1, []]]),
    ("frames", [["", True, True, [["etag", ""], ["last-modified", ""]], [0], 1, []]]),
    ("frames", [["b", True, False, [["etag", ""], ["last-modified", ""]], [0], 1, []]]),
    ("frames", [["b", True, True, [["etag", ""], ["last-modified", ""], ["a", ""]], [0], 1, [2]]]),
    ("packed", "AAAA"), ("packed", ""), ("packed", "?"), ("ids", ""), ("ids", b64encode(bytes(32)).decode()),
    ("versions", [35, 0, "1", 1]), ("versions", [35, 0, 1.5]), ("versions", [34, 0, 1.5, 1]),
    ("versions", [35, -1, 1.5, 1]),
    ("versions", []), ("more", {"0": 5}), ("more", {"0": [None, [[["a", 1]], True]]}), ("more", 5),
    ("blocks", [0, 0]), ("blocks", [1, 0, 1]), ("blocks", [-1, 0, 1]), ("blocks", [0, 1, 1]), ("blocks", [0, 0, 0]),
    ("blocks", [0, True, 1]), ("blocks", 7),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), ODD_FIELDS)
def test_a_snapshot_with_an_odd_page_is_a_bad_one(name: str, value: object) -> None:
    def sealed(page: dict[str, object]) -> bytes:
        lines = [b'{"saved_at":1.5,"doubts":[]}\n', json_line(page)]
        return b"".join(LinesFormat("outrider index", 4).encode(lines))

    ((meta, disk_bytes, saved),) = index_snapshot.decode(sealed(PAGE))
    etag, date = '"' + 32 * "0" + '"', "Thu, 01 Jan 1970 00:00:01 GMT"
    version = ObjectVersion(ObjectRef("b", "k"), etag, 10, (("etag", etag), ("last-modified", date)), True)
    assert (meta.version, disk_bytes, saved) == (version, 4096, (version, 1.5, True, None))
    with pytest.raises(BadFile):
        list(index_snapshot.decode(sealed(PAGE | {name: value})))


ODD_DATASETS: list[dict[str, Any]] = [
    {"keys": [1]},
    {"sizes": ["x"]},
    {"listed": [None]},
    {"listed": [5]},
    {"orders": [{"keys": 3}]},
    {"orders": [3]},
    {"orders": [{"keys": [9], "period_s": 1}]},
    {"orders": [{"keys": [2**40], "period_s": 1}]},
]


@pytest.mark.parametrize("change", ODD_DATASETS)
def test_learned_orders_with_one_odd_field_are_none(change: dict[str, Any]) -> None:
    dataset = {"bucket": "b", "keys": ["a"], "sizes": [1], "listed": [], "orders": []}
    wholes = {"format": saved_datasets._FORMAT, "datasets": [dataset]}
    assert saved_datasets.unpacked(zlib.compress(json.dumps(wholes).encode()))
    with pytest.raises(ValueError, match=r"."):
        saved_datasets.unpacked(zlib.compress(json.dumps({**wholes, "datasets": [dataset | change]}).encode()))


@pytest.mark.parametrize("version", [0, 2])
def test_learned_orders_of_another_format_are_none(version: int) -> None:
    with pytest.raises(ValueError, match=f"format {version}"):
        saved_datasets.unpacked(zlib.compress(json.dumps({"format": version, "datasets": []}).encode()))


@pytest.mark.parametrize("raw", [b"[" * 50_000, b'{"format":' * 9000])
def test_learned_orders_of_any_depth_are_none(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):  # one Python finds it too deep, another finds that it is no JSON
        saved_datasets.unpacked(zlib.compress(raw))
