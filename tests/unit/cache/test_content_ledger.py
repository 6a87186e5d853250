"""The CRCs of blocks add up to that of the object, in any order, also over evictions and a stop; ETags that are no
MD5s."""

from __future__ import annotations

import json
from hashlib import md5
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.content_ledger import Content, ContentLedger, CrcFinding, Md5Etags, Verdict
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.s3.checksums import Kind

LAYOUT = BlockLayout("http://fake", 10)
VERSION = ObjectVersion(ObjectRef("b", "k"), '"v"', 45)
DATA = bytes(range(45))
CRCS = [kind for kind in Kind if kind.is_crc]


def crc(kind: Kind, data: bytes) -> bytes:
    running = kind.begin()
    running.update(data)
    return running.digest()


def add(content: Content, index: int, data: bytes = DATA) -> CrcFinding:
    extent = LAYOUT.extent(index, len(data))
    return content.add(index, crc(content.kind, data[extent.start : extent.stop]))


@given(kind=st.sampled_from(CRCS), order=st.permutations(range(5)), again=st.integers(0, 4))
def test_blocks_that_come_in_any_order_add_up(kind: Kind, order: list[int], again: int) -> None:
    content = Content(LAYOUT, VERSION, kind)
    findings = []
    for index in order:
        findings.append(add(content, index))
        # A block may have been evicted, and come once more.
        if content.knows(again):
            assert add(content, again) in (CrcFinding.WAITING, CrcFinding.WHOLE)
    assert findings == [CrcFinding.WAITING] * 4 + [CrcFinding.WHOLE]
    assert content.digest() == crc(kind, DATA)


def test_a_block_of_a_proved_object_is_proved_by_its_own_crc() -> None:
    content = Content(LAYOUT, VERSION, Kind.CRC64NVME)
    for index in range(5):
        add(content, index)
    content.proved = True
    assert add(content, 3) is CrcFinding.PROVED
    assert add(content, 3, DATA[:32] + b"!" + DATA[33:]) is CrcFinding.CHANGED
    assert add(content, 3) is CrcFinding.PROVED


def test_a_block_that_comes_with_another_crc_is_reported_before_the_object_is_whole() -> None:
    content = Content(LAYOUT, VERSION, Kind.CRC32)
    add(content, 0)
    assert add(content, 0, b"!" + DATA[1:]) is CrcFinding.CHANGED
    content.drop(0)
    assert (content.knows(0), content.missing) == (False, 5)
    content.drop(0)
    assert content.missing == 5


@given(kind=st.sampled_from(CRCS), here=st.sets(st.integers(0, 4)), proved=st.booleans())
def test_what_was_saved_is_known_after_a_start(kind: Kind, here: set[int], proved: bool) -> None:
    content, after = (Content(LAYOUT, VERSION, its) for its in (kind, Kind.CRC64NVME))
    for index in here:
        add(content, index)
    content.proved = proved
    after.load(json.loads(json.dumps(content.saved())))
    assert (after.kind, after.proved, after.missing) == (kind, proved, 5 - len(here))
    assert [after.knows(index) for index in range(5)] == [index in here for index in range(5)]
    after.proved = False
    for index in range(5):
        assert add(after, index) is not CrcFinding.CHANGED
    assert after.digest() == crc(kind, DATA)


@pytest.mark.parametrize(
    "saved",
    [True, 5, [], ["crc32", True, "", ""], ["md5", True, "", ""], ["crc32", True, "!", ""], [None] * 4,
     ["crc32", True, Content(LAYOUT, VERSION, Kind.CRC32).saved()[2], "AgICAgI="]],
)  # fmt: skip
def test_nonsense_is_not_loaded(saved: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Content(LAYOUT, VERSION, Kind.CRC32).load(saved)


def test_the_ledger_forgets_what_was_used_longest_ago() -> None:
    ledger = ContentLedger(blocks_max=12, versions_max=10)
    metas = [BlockMeta(LAYOUT, ObjectVersion(ObjectRef("b", str(n)), '"v"', 45), 0) for n in range(3)]
    first, second, third = (meta.key.version_id for meta in metas)
    ledger.of(metas[0], first, Kind.CRC32)
    ledger.of(metas[1], second, Kind.CRC32)
    assert ledger.of(metas[0], first, Kind.CRC32C).kind is Kind.CRC32
    ledger.of(metas[2], third, Kind.CRC32)
    assert [ledger.get(name) is not None for name in (first, second, third)] == [True, False, True]
    ledger.forget(first)
    ledger.forget(first)
    ledger.of(metas[1], second, Kind.CRC32)
    assert len(ledger) == 2


def sum_of(text: str) -> bytes:
    return md5(text.encode()).digest()


def test_etags_are_no_md5s_where_the_same_bytes_came_twice() -> None:
    etags = Md5Etags()
    assert etags.judge("b", b"1", sum_of("stated"), sum_of("body")) is Verdict.OTHER
    assert etags.judge("b", b"1", sum_of("stated"), sum_of("body")) is Verdict.NO_MD5
    # The next objects are not compared, but for one now and then.
    assert sum(etags.compares("b") for _ in range(640)) == 10
    assert etags.judge("b", b"2", sum_of("stated"), sum_of("body")) is Verdict.NO_MD5
    assert etags.compares("other bucket")
    # A right one shows that they are MD5s.
    assert etags.judge("b", b"3", sum_of("body"), sum_of("body")) is Verdict.SAME
    assert all(etags.compares("b") for _ in range(10))
    assert etags.judge("b", b"4", sum_of("stated"), sum_of("body")) is Verdict.OTHER
    assert etags.judge("b", b"4", sum_of("stated"), sum_of("body")) is Verdict.OTHER


def test_other_bytes_at_each_fetch_do_not_speak_against_the_etag() -> None:
    etags = Md5Etags()
    for turn in range(5):
        assert etags.judge("b", b"1", sum_of("stated"), sum_of(str(turn))) is Verdict.OTHER
    assert etags.judge("b", b"1", sum_of("stated"), sum_of("stated")) is Verdict.SAME
