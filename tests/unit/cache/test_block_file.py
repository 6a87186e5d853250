"""The header of a block file: it is read back as it was written, and any change or cut is found."""

from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import (
    FORMAT,
    HEADER_BYTES_MAX,
    NAME_BYTES,
    PAGE_BYTES,
    BadBlock,
    BlockMeta,
    Header,
    OtherFormat,
    PayloadChecksum,
    block_name,
    decode_header,
    digest_of,
    header_length,
    meta_json,
    payload_in,
    payload_offset_in,
    usual_disk_bytes,
)
from outrider.core.model import BlockKey, Extent, Headers, ObjectRef, ObjectVersion

CHECKSUM = PayloadChecksum(b"payload").digest()


def meta_of(
    key: str = "k", *, headers: Headers = (), size: int = 100, block_bytes: int = 30, index: int = 3
) -> BlockMeta:
    version = ObjectVersion(ObjectRef("bucket", key), '"etag"', size, headers)
    return BlockMeta(BlockLayout("http://origin", block_bytes), version, index)


# Headers as they can come from the wire: text, and bytes that are no UTF-8 as surrogate escapes.
wire_text = st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
# Each byte that RFC 9110 allows in an ETag.
etag_text = st.lists(
    st.sampled_from([b for b in range(0x21, 0x100) if b not in (0x22, 0x7F)]), min_size=1, max_size=40
).map(lambda codes: bytes(codes).decode("utf-8", "surrogateescape"))
metas = st.builds(
    lambda origin, bucket, key, etag, headers, size, block_bytes: BlockMeta(
        BlockLayout(origin, block_bytes),
        ObjectVersion(ObjectRef(bucket, key), f'"{etag}"', size, tuple(headers)),
        (size - 1) // block_bytes,
    ),
    wire_text, wire_text, wire_text, etag_text, st.lists(st.tuples(wire_text, wire_text), max_size=5),
    st.integers(1, 2**50), st.integers(1, 2**33),
)  # fmt: skip


@given(metas, st.binary(min_size=16, max_size=16))
def test_a_header_reads_back_whatever_the_key_and_the_headers_are(meta: BlockMeta, checksum: bytes) -> None:
    header = Header(meta).sealed(checksum)
    assert len(header) == Header(meta).length == header_length(header[:PAGE_BYTES])
    assert len(header) % (PAGE_BYTES if meta.extent.length > 32 * 1024 else 64) == 0
    offset = payload_offset_in(header[:NAME_BYTES], meta.key)
    assert offset == len(header)
    assert payload_offset_in(header[:NAME_BYTES], BlockKey(meta.key.version_id, meta.index + 1)) is None
    assert decode_header(header) == (meta, checksum)
    assert decode_header(header + b"payload") == (meta, checksum)
    assert payload_in(header + b"payload", meta.key) == (len(header), checksum)
    with pytest.raises(BadBlock):
        payload_in(header, BlockKey(meta.key.version_id, meta.index + 1))
    assert decode_header(header)[0].key == meta.key


def test_the_last_block_is_cut_and_the_file_counts_in_full_pages() -> None:
    meta = meta_of(size=100, block_bytes=30, index=3)
    assert meta.extent == Extent(90, 100)
    for payload, header, pages in (
        (10, 192, 1), (PAGE_BYTES - 192, 192, 1), (PAGE_BYTES - 191, 192, 2), (32 * 1024, 192, 9),
        (32 * 1024 + 1, PAGE_BYTES, 10), (36 * 1024 + 1, PAGE_BYTES, 11),
    ):  # fmt: skip
        of = Header(meta_of(size=payload, block_bytes=2**20, index=0))
        assert (of.length, of.disk_bytes) == (header, pages * PAGE_BYTES)
        assert abs(usual_disk_bytes(payload) - of.disk_bytes) <= PAGE_BYTES


def test_a_sample_takes_little_more_disk_than_its_bytes() -> None:
    headers = (
        ("content-type", "image/jpeg"), ("last-modified", "Wed, 21 Oct 2026 07:28:00 GMT"),
        ("x-amz-server-side-encryption", "AES256"), ("x-amz-version-id", "v" * 32),
    )  # fmt: skip
    for size, factor in ((10_000, 1.25), (110_000, 1.06)):
        around = range(size * 9 // 10, size * 11 // 10, 997)
        disk = [Header(meta_of("n" * 50, headers=headers, size=each, block_bytes=2**22, index=0)) for each in around]
        assert sum(each.disk_bytes for each in disk) <= factor * sum(around)


def test_metadata_longer_than_a_page_makes_the_header_longer() -> None:
    meta = meta_of("ключ" * 100, headers=(("x-amz-meta-a", "v" * 2048), ("x-amz-meta-b", "w" * 6000)))
    header = Header(meta).sealed(CHECKSUM)
    assert len(header) > 2 * PAGE_BYTES
    assert len(header) % PAGE_BYTES
    assert header_length(header[:PAGE_BYTES]) == len(header)
    assert decode_header(header) == (meta, CHECKSUM)


def test_metadata_longer_than_any_header_is_refused() -> None:
    meta = meta_of(headers=(("x", "v" * HEADER_BYTES_MAX),))
    assert Header(meta).length > HEADER_BYTES_MAX
    with pytest.raises(ValueError):
        Header(meta).sealed(CHECKSUM)


def test_every_single_bit_flip_is_found() -> None:
    header = Header(meta_of(headers=(("content-type", "x"),))).sealed(CHECKSUM)
    used = len(header.rstrip(b"\0"))
    for position in range(len(header)):
        for bit in range(8 if position < used else 1):
            bad = bytearray(header)
            bad[position] ^= 1 << bit
            with pytest.raises(BadBlock):
                decode_header(bytes(bad))


def test_a_header_cut_anywhere_is_found() -> None:
    header = Header(meta_of(headers=(("x", "v" * 5000),))).sealed(CHECKSUM)
    for length in [*range(100), PAGE_BYTES - 1, PAGE_BYTES, len(header) - 1]:
        with pytest.raises(BadBlock):
            decode_header(header[:length])


@given(st.binary(max_size=200))
def test_bytes_that_are_no_header_are_a_bad_block_and_nothing_worse(raw: bytes) -> None:
    for junk in (raw, b"OUTRIDER" + raw, b"OUTRIDER\1\0\0\0" + raw, raw.ljust(PAGE_BYTES, b"\0")):
        with pytest.raises(BadBlock):
            decode_header(junk)


@pytest.mark.parametrize(
    "raw",
    [b"{}", b"[]", b"nonsense", b'{"origin":1}', b"null", b"\xff",
     b'{"origin":"o","bucket":"b","key":"k","etag":"\\"e\\"","size":5,"headers":{},"block_bytes":5,"index":0}',
     b'{"origin":"o","bucket":"b","key":"k","etag":"\\"e\\"","size":5,"headers":[["a"]],"block_bytes":5,"index":0}',
     b'{"origin":"o","bucket":"b","key":"k","etag":"\\"e\\"","size":5,"headers":[],"block_bytes":5,"index":1}',
     b'{"origin":"o","bucket":"b","key":"k","etag":"\\"e\\"","size":5,"headers":[],"block_bytes":0,"index":0}',
     b'{"origin":"o","bucket":"b","key":"k","etag":"W/\\"e\\"","size":5,"headers":[],"block_bytes":5,"index":0}',
     b'{"origin":"o","bucket":"b","key":"k","etag":"\\"e\\"","size":true,"headers":[],"block_bytes":5,"index":0}'],
)  # fmt: skip
def test_a_sealed_header_that_makes_no_sense_is_a_bad_block(raw: bytes) -> None:
    for version in (1, 2):
        with pytest.raises(BadBlock):
            decode_header(sealed(raw, version))


@given(metas)
def test_block_files_of_the_release_before_are_read(meta: BlockMeta) -> None:
    """They have pages, and no name."""
    raw = meta_json(meta)
    header = sealed(raw, 1)
    assert decode_header(header) == (meta, CHECKSUM)
    assert digest_of(header) == digest_of(Header(meta).sealed(CHECKSUM)) != ""
    assert payload_offset_in(header, meta.key) is None
    with pytest.raises(BadBlock):
        decode_header(sealed(raw, 1, align=64))


def test_the_name_is_the_block_s_own() -> None:
    meta = meta_of()
    with pytest.raises(BadBlock, match="another block's name"):
        decode_header(sealed(meta_json(meta), 2, name=b"n" * 16))
    assert decode_header(sealed(meta_json(meta), 2, name=block_name(meta.key))) == (meta, CHECKSUM)


def test_another_format_is_distinguished_from_damage() -> None:
    with pytest.raises(OtherFormat):
        decode_header(sealed(b"{}", version=FORMAT + 1))


def sealed(raw: bytes, version: int = FORMAT, *, name: bytes = bytes(16), align: int = PAGE_BYTES) -> bytes:
    """A header with a good checksum around `raw`."""
    layout = struct.Struct("<8sHxxII16s8s")
    name = name if version > 1 else b""
    length = -(-(layout.size + len(name) + len(raw)) // align) * align
    fixed = layout.pack(b"OUTRIDER", version, length, len(raw), CHECKSUM, bytes(8))
    seal = xxhash.xxh3_64(fixed + name + raw).digest()
    return (layout.pack(b"OUTRIDER", version, length, len(raw), CHECKSUM, seal) + name + raw).ljust(length, b"\0")


@pytest.mark.parametrize(("block_bytes", "index"), [(0, 0), (-1, 0), (10, -1), (10, 10), (100, 1)])
def test_a_block_that_lies_outside_its_object_cannot_be(block_bytes: int, index: int) -> None:
    with pytest.raises(ValueError):
        meta_of(block_bytes=block_bytes, index=index)


def test_an_empty_object_has_no_blocks() -> None:
    with pytest.raises(ValueError):
        meta_of(size=0, index=0)
