"""Fuzz tests of all files in the cache directory, with right checksums: each is read, or refused with its one error."""

from __future__ import annotations

import json
import sys
import zlib
from array import array
from base64 import b64encode
from typing import Any

import pytest

from outrider.adapters.disk import index_snapshot, snapshot_page
from outrider.adapters.sealed_file import BadFile, LinesFormat
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


HEAD = json.dumps({"saved_at": 1.5, "doubts": [[["b", "k"], 2], [["b"], 3]]}).encode()


def sealed_snapshot(lines: list[bytes], head: bytes = HEAD) -> bytes:
    pages = (snapshot_page.sealed(line + b"\n") for line in lines)
    return b"".join(LinesFormat("outrider index", 5).encode([head + b"\n", *pages]))


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
        b'{"saved_at":1,"doubts":[],"blocks":-1}',
        b'{"saved_at":1,"doubts":[],"blocks":1000000000}',
    ],
)
def test_a_snapshot_with_an_odd_head_is_a_bad_one(head: bytes) -> None:
    with pytest.raises(BadFile):
        index_snapshot.decode(sealed_snapshot([], head))


def column(kind: str, *values: int) -> str:
    return b64encode(array(kind, values)).decode()


FRAME = ["b", True, True, [["etag", ""], ["last-modified", ""]], [0], 1, []]
PAGE: dict[str, object] = {
    "order": sys.byteorder, "at": 9, "layout": ["o", 4096], "frames": [[1, FRAME]],
    "packed": b64encode(b"\1\0\0\0" + (10).to_bytes(8, "little") + b"\1\0k" + bytes([1, 0, 0, 0]) + bytes(16)).decode(),
    "ids": b64encode(bytes(16)).decode(), "lengths": column("I", 35), "confirmed_at": column("q", 1),
    "vouched": column("B", 1), "proved": column("B", 0), "more": {}, "numbers": column("I", 0),
    "indexes": column("I", 0), "pages": column("I", 1),
}  # fmt: skip
ODD_FIELDS = [
    ("layout", []), ("layout", ["o", 0]), ("layout", [1, 4096]), ("frames", []), ("frames", [[2, FRAME]]),
    ("frames", [[0, FRAME]]), ("frames", [[2**40, FRAME]]),
    ("order", "middle"), ("at", None), ("frames", [[1, ["b"]]]),
    ("frames", [[1, ["b", True, True, [["etag", 5]], [0], -1, []]]]),
    ("frames", [[1, ["b", True, True, [], [0], -1, []]]]),
    ("frames", [[1, ["b", True, True, [["etag", ""], ["last-modified", ""]], [0, 0], 1, []]]]),
    ("frames", [[1, ["", True, True, [["etag", ""], ["last-modified", ""]], [0], 1, []]]]),
    ("frames", [[1, ["b", True, False, [["etag", ""], ["last-modified", ""]], [0], 1, []]]]),
    ("frames", [[1, ["b", True, True, [["etag", ""], ["last-modified", ""], ["a", ""]], [0], 1, [2]]]]),
    ("packed", "AAAA"), ("packed", ""), ("packed", "?"), ("packed", 7), ("ids", ""),
    ("ids", b64encode(bytes(32)).decode()), ("ids", b64encode(bytes(17)).decode()),
    ("lengths", column("I", 34)), ("lengths", column("I", 35, 0)), ("lengths", "AAAA"), ("lengths", None),
    ("confirmed_at", ""), ("vouched", ""), ("proved", column("B", 0, 0)),
    ("more", {"0": 5}), ("more", {"0": [None, [[["a", 1]], True]]}), ("more", 5),
    ("numbers", ""), ("numbers", column("I", 1)), ("numbers", column("I", 0, 0)), ("indexes", column("I", 1)),
    ("indexes", ""), ("pages", column("I", 0)), ("pages", ""),
]  # fmt: skip
SHORT = bytes([1, 0, 0, 0]) + (10).to_bytes(8, "little") + b"\0\0" + bytes(6)


def test_a_version_that_is_shorter_than_its_frame_is_a_bad_one() -> None:
    page = PAGE | {"packed": b64encode(SHORT).decode(), "lengths": column("I", len(SHORT))}
    with pytest.raises(BadFile):
        list(index_snapshot.decode(sealed_snapshot([json.dumps(page).encode()])))


@pytest.mark.parametrize(("name", "value"), ODD_FIELDS)
def test_a_snapshot_with_an_odd_page_is_a_bad_one(name: str, value: object) -> None:
    def sealed(page: dict[str, object]) -> bytes:
        return sealed_snapshot([json.dumps(page).encode()])

    ((meta, disk_bytes, saved),) = index_snapshot.decode(sealed(PAGE))
    etag, date = '"' + 32 * "0" + '"', "Thu, 01 Jan 1970 00:00:01 GMT"
    version = ObjectVersion(ObjectRef("b", "k"), etag, 10, (("etag", etag), ("last-modified", date)), True)
    assert (meta.version, disk_bytes, saved) == (version, 4096, (version, 1, True, None))
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
