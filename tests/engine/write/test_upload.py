"""Uploads: the origin gets the last byte of a body only after length, hash, signatures and checksums were verified."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.auth.verification import Identity
from outrider.core.errors import (
    BadDigest,
    ContentSha256Mismatch,
    IncompleteBody,
    InvalidRequest,
    MissingContentLength,
    S3Error,
    SignatureDoesNotMatch,
)
from outrider.core.model import Headers
from outrider.core.s3.aws_chunked import ChunkSigning
from outrider.core.s3.body_integrity import UNSIGNED, PayloadForm, PayloadRule
from outrider.engine.write.upload import Upload, upload_of, whole_body
from tests.support.fakes import RAMP

SIGNING = ChunkSigning(b"k" * 32, "20260101/us-east-1/s3/aws4_request", "20260101T000000Z", "0" * 64)
SIGNED_CHUNKS = PayloadRule(PayloadForm.SIGNED_CHUNKS)
TRAILER = PayloadRule(PayloadForm.UNSIGNED_CHUNKS_TRAILER)
WHO = Identity("AK", SIGNED_CHUNKS, SIGNING.seed_signature, SIGNING.signing_key, SIGNING.scope, SIGNING.amz_date)


async def source(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def hashed(data: bytes) -> PayloadRule:
    return PayloadRule(PayloadForm.HASHED, hashlib.sha256(data).hexdigest())


async def gathered(upload: Upload) -> tuple[bytes, BaseException | None]:
    """The bytes that were sent to the origin, and the error that stopped the upload."""
    got = bytearray()
    if upload.body is None:
        return b"", None
    try:
        async for piece in upload.body:
            got += piece
    except S3Error:
        assert upload.error is not None
    return bytes(got), upload.error


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    chunks, at = [], 0
    for size in sizes:
        chunks.append(data[at : at + size])
        at += size
    return [*chunks, data[at:]]


@given(st.integers(1, 3000), st.lists(st.integers(0, 900), max_size=6), st.booleans())
async def test_a_plain_body_is_sent_unchanged(length: int, sizes: list[int], with_hash: bool) -> None:
    data = RAMP[:length]
    upload = upload_of((), hashed(data) if with_hash else UNSIGNED, None, source(*cut(data, sizes)), length)
    assert (upload.body_bytes, await gathered(upload)) == (length, (data, None))


@given(st.integers(1, 3000), st.lists(st.integers(0, 900), max_size=6))
async def test_a_body_with_another_hash_is_never_sent_whole(length: int, sizes: list[int]) -> None:
    data = RAMP[:length]
    upload = upload_of((), hashed(data + b"x"), None, source(*cut(data, sizes), b""), length)
    got, error = await gathered(upload)
    assert isinstance(error, ContentSha256Mismatch)
    assert len(got) < length


@given(st.integers(2, 3000), st.lists(st.integers(0, 900), max_size=6))
async def test_a_body_that_ends_early_is_never_sent_whole(length: int, sizes: list[int]) -> None:
    data = RAMP[: length - 1]
    got, error = await gathered(upload_of((), UNSIGNED, None, source(*cut(data, sizes)), length))
    assert isinstance(error, IncompleteBody)
    assert len(got) < length


async def test_a_body_without_a_length_is_refused() -> None:
    with pytest.raises(MissingContentLength):
        upload_of((), UNSIGNED, None, source(b"x"), None)
    with pytest.raises(MissingContentLength):
        upload_of((), TRAILER, None, source(b"x"), 5)


async def test_an_empty_body_is_not_sent_and_its_hash_is_checked_at_once() -> None:
    assert upload_of((), hashed(b""), None, source(), 0).body is None
    assert upload_of((), UNSIGNED, None, source(), 0).body is None
    with pytest.raises(ContentSha256Mismatch):
        upload_of((), hashed(b"x"), None, source(), 0)


def signed_body(data: bytes, step: int, *, spoil: int | None = None) -> bytes:
    """A signed aws-chunked body. The signature of chunk `spoil` is wrong."""
    wire, previous = b"", SIGNING.seed_signature
    for number, chunk in enumerate([*(data[at : at + step] for at in range(0, len(data), step)), b""]):
        previous = SIGNING.chunk_signature(previous, hashlib.sha256(chunk).hexdigest())
        shown = "f" * 64 if number == spoil else previous
        wire += b"%x;chunk-signature=%s\r\n" % (len(chunk), shown.encode()) + chunk + b"\r\n"
    return wire


def decoded_headers(length: int, *more: tuple[str, str]) -> Headers:
    return (("x-amz-decoded-content-length", str(length)), *more)


@pytest.mark.parametrize("step", [1000, 2999, 3000, 5000])
async def test_a_chunk_signed_body_is_sent_without_its_chunks(step: int) -> None:
    data = RAMP[:3000]
    upload = upload_of(decoded_headers(3000), SIGNED_CHUNKS, WHO, source(*cut(signed_body(data, step), [50] * 9)), None)
    assert (upload.body_bytes, await gathered(upload)) == (3000, (data, None))


@pytest.mark.parametrize("spoil", [0, 1, 2, 3])
async def test_a_body_with_a_wrong_chunk_signature_is_never_sent_whole(spoil: int) -> None:
    wire = signed_body(RAMP[:3000], 1000, spoil=spoil)
    got, error = await gathered(upload_of(decoded_headers(3000), SIGNED_CHUNKS, WHO, source(wire), None))
    assert isinstance(error, SignatureDoesNotMatch)
    assert len(got) < 3000


@pytest.mark.parametrize("missing", [1, 5, 90, 1000])
async def test_a_chunked_body_that_ends_early_is_never_sent_whole(missing: int) -> None:
    wire = signed_body(RAMP[:3000], 1000)[:-missing]
    got, error = await gathered(upload_of(decoded_headers(3000), SIGNED_CHUNKS, WHO, source(wire), None))
    assert isinstance(error, IncompleteBody)
    assert len(got) < 3000


CRC32 = "x-amz-checksum-crc32"


@pytest.mark.parametrize("good", [True, False])
async def test_a_trailing_checksum_is_kept_and_checked_before_the_origin_can_commit(good: bool) -> None:
    import base64
    import zlib

    data = RAMP[:3000]
    crc = base64.b64encode(zlib.crc32(data if good else b"").to_bytes(4, "big")).decode()
    wire = b"%x\r\n" % len(data) + data + f"\r\n0\r\n{CRC32}:{crc}\r\n\r\n".encode()
    headers = decoded_headers(3000, ("x-amz-trailer", CRC32), ("content-encoding", "aws-chunked"))
    upload = upload_of(headers, TRAILER, None, source(*cut(wire, [7, 1000])), None)
    got, error = await gathered(upload)
    assert dict(upload.headers)["x-amz-trailer"] == CRC32
    assert upload.payload_hash == "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    if good:
        assert (error, len(got)) == (None, upload.body_bytes)
        assert f"{CRC32}:{crc}".encode() in got
    else:
        assert isinstance(error, BadDigest)
        assert upload.body_bytes is not None
        assert len(got) < upload.body_bytes


async def test_a_small_body_is_gathered_up_to_its_limit() -> None:
    assert await whole_body((), UNSIGNED, None, source(b"ab", b"c"), 3, limit=3) == (b"abc", ())
    with pytest.raises(InvalidRequest):
        await whole_body((), UNSIGNED, None, source(b"ab", b"cd"), 4, limit=3)
    with pytest.raises(ContentSha256Mismatch):
        await whole_body((), hashed(b"x"), None, source(b"abc"), 3, limit=3)
    wire = signed_body(RAMP[:100], 60)
    assert await whole_body(decoded_headers(100), SIGNED_CHUNKS, WHO, source(wire), None, limit=100) == (RAMP[:100], ())
