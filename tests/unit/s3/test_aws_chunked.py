"""aws-chunked bodies: the examples that AWS published, bodies cut anywhere, and forged ones."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha1, sha256
from io import BytesIO
from itertools import pairwise

import pytest
from botocore.httpchecksum import AwsChunkedWrapper, Crc32Checksum
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import errors
from outrider.core.auth.sigv4 import SigningKeys
from outrider.core.auth.verification import SignedRequest, verify
from outrider.core.s3.aws_chunked import LINE_BYTES_MAX, TRAILER_BYTES_MAX, ChunkedDecoder, ChunkSigning, Piece
from outrider.core.s3.body_integrity import decoded_length_of, trailer_names_of

RAMP = bytes(i % 251 for i in range(200_000))
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SCOPE = "20130524/us-east-1/s3/aws4_request"
SIGNING = ChunkSigning(
    SigningKeys().get(SECRET, "20130524", "us-east-1"),
    SCOPE,
    "20130524T000000Z",
    "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
)
CRC32 = "x-amz-checksum-crc32"
CRC32C = "x-amz-checksum-crc32c"
XXHASH64 = "x-amz-checksum-xxhash64"


def crc32_of(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def join(pieces: list[Piece]) -> bytes:
    return b"".join(pieces)


@dataclass(frozen=True)
class Wire:
    """An upload as a client sends it: the chunks, what it signs with, the trailers."""

    chunks: tuple[bytes, ...]
    signing: ChunkSigning | None = None
    trailers: tuple[tuple[str, str], ...] | None = None

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def encode(self) -> bytes:
        out = bytearray()
        previous = "" if self.signing is None else self.signing.seed_signature
        for chunk in (*self.chunks, b""):
            tail = ""
            if self.signing is not None:
                previous = self.signing.chunk_signature(previous, sha256(chunk).hexdigest())
                tail = f";chunk-signature={previous}"
            out += f"{len(chunk):x}{tail}\r\n".encode() + chunk + (b"\r\n" if chunk else b"")
        if self.trailers is not None:
            out += "".join(f"{name}:{value}\r\n" for name, value in self.trailers).encode()
            if self.signing is not None:
                signature = self.signing.trailer_signature(previous, dict(self.trailers))
                out += f"x-amz-trailer-signature:{signature}\r\n".encode()
        return bytes(out + b"\r\n")

    def decoder(self, *, signing: bool = True) -> ChunkedDecoder:
        names = frozenset(name for name, _ in self.trailers or ())
        return ChunkedDecoder(len(self.body), self.signing if signing else None, names, self.trailers is not None)


UNSIGNED = Wire((RAMP[:70_000], RAMP[70_000:70_007]), None, ((CRC32, crc32_of(RAMP[:70_007])),))
SIGNED = Wire((RAMP[:70_000], RAMP[70_000:70_007]), SIGNING)
SIGNED_TRAILER = replace(UNSIGNED, signing=SIGNING)
WIRES = {"unsigned with trailer": UNSIGNED, "signed": SIGNED, "signed with trailer": SIGNED_TRAILER}
wires = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES.keys())


def decode(decoder: ChunkedDecoder, encoded: bytes, cuts: list[int] | None = None) -> bytes:
    edges = [0, *sorted(cut % (len(encoded) + 1) for cut in cuts or ()), len(encoded)]
    pieces = [piece for a, b in pairwise(edges) for piece in decoder.feed(encoded[a:b])]
    decoder.finish()
    return join(pieces)


PUBLISHED_CHUNKS = (b"a" * 65536, b"a" * 1024)


def published(signatures: tuple[str, str, str], trailers: bytes) -> bytes:
    out = b""
    for chunk, signature in zip((*PUBLISHED_CHUNKS, b""), signatures, strict=True):
        out += b"%x;chunk-signature=%s\r\n" % (len(chunk), signature.encode())
        out += chunk + b"\r\n" if chunk else b""
    return out + trailers + b"\r\n"


EXAMPLE = published(
    (
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ),
    b"",
)
TRAILER_EXAMPLE = published(
    (
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ),
    b"x-amz-checksum-crc32c:sOO8/Q==\r\n"
    b"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n",
)


def test_the_published_example_is_accepted_from_its_request_on() -> None:
    headers = {
        "host": "s3.amazonaws.com",
        "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "content-encoding": "aws-chunked",
        "x-amz-decoded-content-length": "66560",
        "content-length": "66824",
        "authorization": f"AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/{SCOPE},SignedHeaders=content-encoding;"
        "content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class,"
        f"Signature={SIGNING.seed_signature}",
    }
    request = SignedRequest("PUT", "/examplebucket/chunkObject.txt", "", tuple(headers.items()))
    identity = verify(request, secret_of=lambda _: SECRET, now=1369353600.0, keys=SigningKeys())
    assert identity is not None
    assert identity.payload.chunks_signed
    signing = ChunkSigning(identity.signing_key, identity.scope, identity.amz_date, identity.seed_signature)
    decoder = ChunkedDecoder(decoded_length_of(request.headers), signing, trailer_names_of(request.headers), False)
    assert len(EXAMPLE) == 66824
    assert decode(decoder, EXAMPLE) == b"a" * 66560


def test_the_published_trailer_example_is_accepted() -> None:
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    decoder = ChunkedDecoder(66560, replace(SIGNING, seed_signature=seed), frozenset((CRC32C,)), True)
    assert len(TRAILER_EXAMPLE) == 66946
    assert decode(decoder, TRAILER_EXAMPLE) == b"a" * 66560
    assert decoder.trailers == {CRC32C: "sOO8/Q=="}


@wires
@given(cuts=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_any_cut_of_the_wire_gives_the_same_body(wire: Wire, cuts: list[int]) -> None:
    decoder = wire.decoder()
    assert decode(decoder, wire.encode(), cuts) == wire.body
    assert decoder.trailers == dict(wire.trailers or ())


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    signing=st.sampled_from([None, SIGNING]),
    trailer=st.booleans(),
)
def test_a_body_that_drips_in_byte_by_byte_is_the_same(
    chunks: list[bytes], signing: ChunkSigning | None, trailer: bool
) -> None:
    trailers = ((CRC32, crc32_of(b"".join(chunks))),) if trailer else None
    wire = Wire(tuple(chunks), signing, trailers)
    encoded = wire.encode()
    assert decode(wire.decoder(), encoded, list(range(len(encoded)))) == wire.body


@wires
def test_in_loopback_mode_signatures_are_read_but_not_checked(wire: Wire) -> None:
    forged = replace(wire, signing=wire.signing and replace(SIGNING, signing_key=b"another"))
    encoded = forged.encode()
    decoder = wire.decoder(signing=False)
    assert decode(decoder, encoded) == wire.body
    assert decoder.trailers == dict(wire.trailers or ())


@wires
def test_the_last_byte_waits_until_everything_proved_true(wire: Wire) -> None:
    encoded = wire.encode()
    for stop in range(len(encoded) - 400, len(encoded)):
        decoder = wire.decoder()
        assert len(join(decoder.feed(encoded[:stop]))) < len(wire.body)
        assert not decoder.done
        with pytest.raises(errors.IncompleteBody):
            decoder.finish()


@wires
@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_no_flipped_bit_gets_the_last_byte_out(wire: Wire, step: int) -> None:
    encoded = wire.encode()
    spots = [*range(0, len(encoded), 9001), *range(len(encoded) - 300, len(encoded))]
    for spot in spots:
        bad = bytearray(encoded)
        bad[spot] ^= 0x10
        decoder = wire.decoder()
        given_out = 0
        try:
            for start in range(0, len(bad), step):
                given_out += len(join(decoder.feed(bytes(bad[start : start + step]))))
            decoder.finish()
        except errors.S3Error:
            assert given_out < len(wire.body)
        else:
            pytest.fail(f"byte {spot} changed unseen: {bytes(encoded[spot - 20 : spot + 20])!r}")


def refused(error: type[errors.S3Error], encoded: bytes, decoder: ChunkedDecoder, match: str | None = None) -> None:
    with pytest.raises(error, match=match):
        decode(decoder, encoded)


def drip(decoder: ChunkedDecoder, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        decoder.feed(data[start : start + step])


def unsigned(length: int | None = 4, names: frozenset[str] = frozenset()) -> ChunkedDecoder:
    return ChunkedDecoder(length, None, names, True)


def test_a_chunk_signed_with_another_key_is_refused() -> None:
    other = replace(SIGNED, signing=replace(SIGNING, signing_key=b"another"))
    refused(errors.SignatureDoesNotMatch, other.encode(), SIGNED.decoder())


def test_chunks_may_not_change_places() -> None:
    first, second, end = (SIGNED.encode()[a:b] for a, b in ((0, 70_090), (70_090, 70_090 + 92), (70_182, None)))
    assert decode(SIGNED.decoder(), first + second + end) == SIGNED.body
    refused(errors.SignatureDoesNotMatch, second + first + end, SIGNED.decoder())


def test_a_chunk_without_its_signature_is_refused() -> None:
    refused(errors.SignatureDoesNotMatch, replace(SIGNED, signing=None).encode(), SIGNED.decoder(), "without")


def test_a_final_chunk_must_be_signed_as_well() -> None:
    cut = SIGNED.encode().rindex(b"0;chunk-signature")
    forged = SIGNED.encode()[:cut] + b"0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n"
    refused(errors.SignatureDoesNotMatch, forged, SIGNED.decoder())


def test_a_trailer_signature_must_come_and_match() -> None:
    encoded = SIGNED_TRAILER.encode()
    at = encoded.rindex(b"x-amz-trailer-signature")
    refused(errors.IncompleteBody, encoded[:at] + b"\r\n", SIGNED_TRAILER.decoder())
    forged = encoded[:at] + b"x-amz-trailer-signature:" + b"0" * 64 + b"\r\n\r\n"
    refused(errors.SignatureDoesNotMatch, forged, SIGNED_TRAILER.decoder())


def test_a_trailer_after_the_signature_of_the_trailers_is_refused() -> None:
    wire = replace(SIGNED_TRAILER, trailers=())
    encoded = wire.encode()[:-2] + f"{CRC32C}:AAAAAA==\r\n\r\n".encode()
    decoder = ChunkedDecoder(len(wire.body), SIGNING, frozenset((CRC32C,)), True)
    refused(errors.InvalidRequest, encoded, decoder)


def test_several_trailers_are_signed_in_the_order_of_their_names() -> None:
    body = UNSIGNED.body
    values = (("x-amz-checksum-sha1", base64.b64encode(sha1(body).digest()).decode()), (CRC32, crc32_of(body)))
    wire = replace(SIGNED_TRAILER, trailers=values)
    assert decode(wire.decoder(), wire.encode()) == body


def test_the_dialects_of_minio_are_understood() -> None:
    crc = f"{CRC32}:{crc32_of(SIGNED_TRAILER.body)}"
    for wire, after in ((UNSIGNED, "\n\r\n\r\n"), (SIGNED_TRAILER, "\n\r\n")):
        encoded = wire.encode()
        at = encoded.rindex(crc.encode()) + len(crc)
        rest = encoded[at + 2 :] if wire.signing else b""
        assert decode(wire.decoder(), encoded[:at] + after.encode() + rest) == wire.body


def test_a_body_that_botocore_frames_is_decoded() -> None:
    wrapper = AwsChunkedWrapper(BytesIO(RAMP), Crc32Checksum, CRC32, chunk_size=65536)
    decoder = ChunkedDecoder(len(RAMP), None, frozenset((CRC32,)), True)
    assert decode(decoder, wrapper.read()) == RAMP
    assert decoder.trailers == {CRC32: crc32_of(RAMP)}


def test_a_wrong_trailing_checksum_is_a_bad_digest() -> None:
    wrong = replace(UNSIGNED, trailers=((CRC32, crc32_of(b"else")),))
    refused(errors.BadDigest, wrong.encode(), wrong.decoder())


def test_a_checksum_that_is_not_computed_here_must_at_least_have_its_form() -> None:
    body = b"4\r\nabcd\r\n0\r\n"
    names = frozenset((XXHASH64,))
    assert decode(unsigned(names=names), body + f"{XXHASH64}: AAAAAAAAAAA= \r\n\r\n".encode()) == b"abcd"
    for value in ("", "AAAAAAA=", "AAAAAAAAAAAA", "AAAAAAAA!AA=", "AAAAAAAAAAA", "AAAAAAAAAAA=AAAA"):
        refused(errors.InvalidRequest, body + f"{XXHASH64}:{value}\r\n\r\n".encode(), unsigned(names=names))


@pytest.mark.parametrize(
    "trailers",
    [
        "x-amz-meta-a:b\r\n\r\n",
        f"{CRC32C}:AAAAAA==\r\n{CRC32C}:AAAAAA==\r\n\r\n",
        "no colon\r\n\r\n",
        ":no name\r\n\r\n",
        "na me:x\r\n\r\n",
        f"{CRC32C}:é\r\n\r\n",
        f"x-amz-trailer-signature:{'0' * 64}\r\n\r\n",
    ],
)
def test_trailers_that_were_not_announced_or_are_malformed_are_refused(trailers: str) -> None:
    refused(errors.InvalidRequest, b"0\r\n" + trailers.encode(), unsigned(0, frozenset((CRC32C,))))


def test_an_announced_trailer_must_come() -> None:
    refused(errors.IncompleteBody, b"0\r\n\r\n", unsigned(0, frozenset((CRC32C,))), "trailers")


def test_no_trailer_may_come_where_none_is_expected() -> None:
    decoder = ChunkedDecoder(0, None, frozenset((CRC32,)), False)
    refused(errors.InvalidRequest, b"0\r\n" + f"{CRC32}:AAAAAA==\r\n\r\n".encode(), decoder)
    assert decode(ChunkedDecoder(0, None, frozenset((CRC32,)), False), b"0\r\n\r\n") == b""


@pytest.mark.parametrize(
    "header",
    ["", "+4", "0x4", "4_0", " 4", "4 ", "g", "-1", "4;x=y", "4;chunk-signature=",
     f"4;chunk-signature={'G' * 64}", f"4;chunk-signature={'0' * 63}", "1" * 17, "4\n", "４"]
)  # fmt: skip
def test_a_chunk_header_that_is_no_plain_hex_number_is_refused(header: str) -> None:
    refused(errors.InvalidRequest, header.encode() + b"\r\nabcd\r\n0\r\n\r\n", unsigned(None))


def test_lines_end_in_cr_lf() -> None:
    for body in (b"4\nabcd\r\n0\r\n\r\n", b"4\r\nabcd\n0\r\n\r\n", b"4\r\nabcde\r\n0\r\n\r\n"):
        refused(errors.InvalidRequest, body, unsigned(None))


def test_a_chunk_beyond_any_put_is_refused() -> None:
    refused(errors.InvalidRequest, b"%x\r\n" % ((5 << 30) + 1), unsigned(None))
    assert unsigned(None).feed(b"%x\r\n" % (5 << 30)) == []


@pytest.mark.parametrize("size", [LINE_BYTES_MAX + 2, 10 * LINE_BYTES_MAX])
@pytest.mark.parametrize("step", [1, 100_000])
def test_a_chunk_header_is_bounded(size: int, step: int) -> None:
    decoder = unsigned(None)
    with pytest.raises(errors.InvalidRequest):
        drip(decoder, b"0" * size, step)


@pytest.mark.parametrize("line", [b"\r\n", b"a" * 100 + b":b\r\n", b"a"])
def test_the_trailers_are_bounded(line: bytes) -> None:
    decoder = unsigned(0, frozenset((CRC32C, "a" * 100)))
    decoder.feed(b"0\r\n")
    with pytest.raises(errors.InvalidRequest):
        drip(decoder, line * (TRAILER_BYTES_MAX + 2), len(line))


def test_a_body_longer_than_it_said_is_refused_before_its_bytes() -> None:
    refused(errors.InvalidRequest, b"4\r\nabcd\r\n1\r\n", unsigned(4))


def test_a_body_shorter_than_it_said_is_incomplete() -> None:
    refused(errors.IncompleteBody, b"4\r\nabcd\r\n0\r\n\r\n", unsigned(5))


def test_nothing_may_follow_the_end() -> None:
    for rest in (b"x", b"\n", b"\r\n\r\n", b"\r\nx", b"\r\r"):
        refused(errors.InvalidRequest, b"4\r\nabcd\r\n0\r\n\r\n" + rest, unsigned(4))
        decoder = unsigned(4)
        decoder.feed(b"4\r\nabcd\r\n0\r\n\r\n")
        with pytest.raises(errors.InvalidRequest):
            drip(decoder, rest, 1)


def test_large_payload_passes_as_views_and_is_never_kept() -> None:
    size = 64 << 20
    decoder = ChunkedDecoder(size, SIGNING, frozenset(), False)
    decoder.feed(b"%x;chunk-signature=%s\r\n" % (size, b"0" * 64))
    data = bytes(1 << 20)
    tracemalloc.start()
    for _ in range(63):
        for piece in decoder.feed(data):
            assert isinstance(piece, memoryview)
            assert piece.obj is data
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    with pytest.raises(errors.SignatureDoesNotMatch):
        decoder.feed(data)


@given(
    st.binary(max_size=200), st.booleans(), st.sampled_from([None, SIGNING]), st.lists(st.integers(0, 200), max_size=3)
)
def test_garbage_is_an_s3_error_or_a_body(
    data: bytes, trailers: bool, signing: ChunkSigning | None, cuts: list[int]
) -> None:
    for prefix in (b"", b"0\r\n", b"4\r\nabcd\r\n"):
        with suppress(errors.S3Error):
            decode(ChunkedDecoder(None, signing, frozenset((CRC32C,)), trailers), prefix + data, cuts)


def test_the_key_does_not_show() -> None:
    assert repr(SIGNING.signing_key) not in repr(SIGNING)
