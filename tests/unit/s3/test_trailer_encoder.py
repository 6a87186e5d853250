"""The aws-chunked framing sent to the origin, against botocore's and our decoder."""

from __future__ import annotations

import base64
import zlib
from io import BytesIO

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.s3.aws_chunked import ChunkedDecoder, TrailerEncoder
from outrider.core.s3.body_integrity import CHECKSUM_CHARS, body_checksum

RAMP = bytes(i % 251 for i in range(200_000))
CRC32 = "x-amz-checksum-crc32"
CRC32C = "x-amz-checksum-crc32c"


@given(
    pieces=st.lists(st.binary(max_size=50), max_size=6),
    chunk_bytes=st.integers(1, 64),
    names=st.sets(st.sampled_from(sorted(CHECKSUM_CHARS))),
)
def test_the_decoder_gives_back_the_payload_that_the_encoder_framed(
    pieces: list[bytes], chunk_bytes: int, names: set[str]
) -> None:
    body = b"".join(pieces)
    values: dict[str, str] = {}
    for name in names:
        checksum = body_checksum(name)
        if checksum is None:
            values[name] = base64.b64encode(bytes({12: 8, 24: 16}[CHECKSUM_CHARS[name]])).decode()
        else:
            checksum.update(body)
            values[name] = checksum.value
    encoder = TrailerEncoder(len(body), {name: CHECKSUM_CHARS[name] for name in names}, chunk_bytes)
    encoded = b"".join([framed for piece in pieces for framed in encoder.feed(piece)]) + encoder.finish(values)
    assert len(encoded) == encoder.encoded_length
    decoder = ChunkedDecoder(len(body), None, frozenset(names), True)
    assert b"".join(decoder.feed(encoded)) == body
    assert decoder.done
    assert decoder.trailers == values


def test_the_encoder_frames_as_botocore_does() -> None:
    expected = AwsChunkedWrapper(BytesIO(RAMP), Crc32Checksum, CRC32, chunk_size=65536).read()
    encoder = TrailerEncoder(len(RAMP), {CRC32: 8}, 65536)
    assert (
        b"".join(encoder.feed(RAMP))
        + encoder.finish({CRC32: base64.b64encode(zlib.crc32(RAMP).to_bytes(4, "big")).decode()})
        == expected
    )


def test_the_encoder_refuses_payload_or_trailers_of_another_length() -> None:
    with pytest.raises(ValueError):
        TrailerEncoder(3, {}).feed(b"abcd")
    encoder = TrailerEncoder(3, {CRC32: 8})
    with pytest.raises(ValueError):
        encoder.finish({CRC32: "AAAAAA=="})
    encoder.feed(b"abc")
    for trailers in ({}, {CRC32: "AAAA"}, {CRC32C: "AAAAAA=="}):
        with pytest.raises(ValueError):
            encoder.finish(trailers)
    for length, chunk_bytes in ((-1, 5), (5, 0)):
        with pytest.raises(ValueError):
            TrailerEncoder(length, {}, chunk_bytes)
