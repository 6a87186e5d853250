"""Versions as bytes: each comes back as it was, whatever its headers are."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.core.model import Headers, ObjectRef, ObjectVersion, is_strong_etag
from outrider.core.packed_version import _FRAMES_MAX, Packing

MD5 = '"d41d8cd98f00b204e9800998ecf8427e"'
DATES = [
    "Mon, 23 Nov 2026 20:15:07 GMT", "Thu, 29 Feb 2024 00:00:00 GMT", "Thu, 01 Jan 1970 00:00:00 GMT",
    "Mon, 23 Nov 2026 20:15:99 GMT", "Tue, 23 Nov 2026 20:15:07 GMT", "Sun, 06 Nov 1994 08:49:37 gmt", "Mon, 23 Nov",
    "Fri, 01 Jan 2900 00:00:00 GMT", "Mon, 23 Foo 2026 20:15:07 GMT", "Sat, 01 Jan 0001 00:00:00 GMT", "",
]  # fmt: skip
# Also halves of surrogate pairs, alone and in an order in which other codecs would join them.
TEXTS = st.text(st.characters(exclude_categories=()) | st.sampled_from("\udcc3\udca9\0 a/"), max_size=12)
ETAGS = st.sampled_from([MD5, MD5.upper(), '"d41d8cd98f00b204e9800998ecf8427e-12"', '"x"', '"' + "0" * 34 + '"'])
NAMES = st.sampled_from(["last-modified", "etag", "content-type", "x-amz-meta-a"]) | TEXTS
HEADERS = st.lists(
    st.tuples(NAMES, st.sampled_from([*DATES, MD5, "image/jpeg", "once more"]) | TEXTS), max_size=6
).map(tuple)  # fmt: skip


@example([ObjectVersion(ObjectRef("b", key), MD5, 1) for key in ("\udcc3\udca9", "\xe9", "\ud800")])
@given(st.lists(st.builds(ObjectVersion, st.builds(ObjectRef, TEXTS, TEXTS), ETAGS, st.integers(0, 2**43), HEADERS,
                          st.booleans()), min_size=1, max_size=8))  # fmt: skip
def test_a_version_comes_back_as_it_was(versions: list[ObjectVersion]) -> None:
    packing = Packing()
    packed = [packing.pack(version) for version in versions]
    assert [packing.unpack(each) for each in packed] == versions
    for version, its in zip(versions, packed, strict=True):
        assert [packing.is_of(each, version.ref) for each in packed] == [other.ref == version.ref for other in versions]
        assert packing.pack(version) is its, "held once"


VERSIONS = st.lists(
    st.builds(
        ObjectVersion,
        st.builds(ObjectRef, st.sampled_from("ab"), st.sampled_from(("k", "train/1.jpg", "\xe9")) | TEXTS),
        ETAGS | st.from_regex('"[0-9a-f]{4}-[0-9a-f]{4}"', fullmatch=True), st.integers(0, 2**43), HEADERS,
    ), min_size=1, max_size=8,
)  # fmt: skip


class Refused(Exception):
    pass


def _check(version: ObjectVersion) -> None:
    if not is_strong_etag(version.etag):
        raise Refused


def _of_a_file(versions: list[ObjectVersion]) -> tuple[Packing, list[bytes]]:
    writer, file = Packing(), Packing()
    packed = [writer.pack(version) for version in versions]
    file.take({number: frame for number, frame in enumerate(writer.frames) if number})
    return file, packed


@given(VERSIONS)
def test_versions_of_a_file_are_taken_over_as_they_were(versions: list[ObjectVersion]) -> None:
    file, raws = _of_a_file(versions)
    packing = Packing()
    packing.pack(ObjectVersion(ObjectRef("other", "k"), MD5, 1))  # the numbers of frames are others
    refs, sizes, packed = packing.taken_over(file, raws, _check)
    assert [packing.unpack(each) for each in packed] == versions
    assert (list(refs), list(sizes)) == ([each.ref for each in versions], [each.size for each in versions])


@pytest.mark.parametrize("others", [(), (("content-type", "image/jpeg"), ("x-amz-meta-a", "once"))])
def test_damaged_versions_of_a_file_are_refused(others: Headers) -> None:
    version = ObjectVersion(ObjectRef("b", "k"), '"65-2710"', 1, (("etag", '"65-2710"'), *others))
    file, [whole] = _of_a_file([version])
    at = whole.index(b'"65')
    length = at - 4
    for damaged in (
        whole[:-1], whole + b"x", whole[:at] + b"x" + whole[at + 1 :], whole[:at] + b"\xff" + whole[at + 1 :],
        whole[:length] + bytes([whole[length] + 1]) + whole[length + 1 :], whole[:length], whole[: length + 2],
    ):  # fmt: skip
        # Versions that are alike are checked at once.
        for raws in ([damaged], [damaged, whole], [whole, damaged, whole]):
            with pytest.raises((Refused, ValueError, LookupError, struct.error)):
                Packing().taken_over(file, raws, _check)


def test_keys_and_frames_beyond_their_bounds_come_back() -> None:
    versions = [ObjectVersion(ObjectRef("b", "k" * 70_000), MD5, 1, (("a", "b"),), True)]
    # A frame for each of these buckets.
    versions += [ObjectVersion(ObjectRef(f"bucket {number}", "k"), '"e"', number) for number in range(9000)]
    versions += [ObjectVersion(ObjectRef("bucket 1", "k"), '"e"', number, (("a", "b"),)) for number in range(9)]
    packing = Packing()
    packed = [packing.pack(version) for version in versions]
    assert len(packing.frames) == 2 * _FRAMES_MAX
    assert [packing.unpack(each) for each in packed] == versions
    for version, other in ((0, 1), (5, 6), (-1, 3), (8888, 8889)):
        assert packing.is_of(packed[version], versions[version].ref)
        assert not packing.is_of(packed[version], versions[other].ref)


def test_a_usual_version_takes_a_hundred_bytes() -> None:
    def version(number: int) -> ObjectVersion:
        headers = (
            ("accept-ranges", "bytes"), ("content-type", "image/jpeg"), ("x-amz-server-side-encryption", "AES256"),
            ("etag", f'"{number:032x}"'), ("last-modified", f"Mon, 23 Nov 2026 20:15:{number % 60:02} GMT"),
        )  # fmt: skip
        return ObjectVersion(ObjectRef("imagenet", f"train/n01440764/{number:05}.JPEG"), f'"{number:032x}"', 9, headers)

    packing = Packing()
    packed = [packing.pack(version(number)) for number in range(100)]
    assert sys.getsizeof(packed[-1]) <= 100
    assert len(packing.frames) <= 4, "all have the same frame once their common headers are known"
