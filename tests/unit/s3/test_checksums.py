"""The proof of content that headers give of an object, and the combination of CRCs."""

from __future__ import annotations

import zlib
from base64 import b64encode
from hashlib import md5, sha1, sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.model import Headers, ObjectRef, ObjectVersion
from outrider.core.s3.checksums import ContentProof, Kind, checksum_of, combined, md5_of, small_proof_of

CRCS = [kind for kind in Kind if kind.is_crc]
# The reflected polynomials. Source: the catalogue of CRC algorithms (reveng.sourceforge.io), CRC-64/NVME, CRC-32/ISCSI
# and CRC-32/ISO-HDLC.
POLYNOMIALS = {Kind.CRC64NVME: (64, 0x9A6C9329AC4BC9B5), Kind.CRC32C: (32, 0x82F63B78), Kind.CRC32: (32, 0xEDB88320)}


def naive(kind: Kind, data: bytes) -> bytes:
    """The CRC, bit by bit."""
    width, polynomial = POLYNOMIALS[kind]
    ones = (1 << width) - 1
    crc = ones
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
    return (crc ^ ones).to_bytes(width // 8, "big")


def hashed(kind: Kind, *pieces: bytes) -> bytes:
    running = kind.begin()
    for piece in pieces:
        running.update(piece)
    return running.digest()


@pytest.mark.parametrize("kind", CRCS)
@given(parts=st.lists(st.binary(max_size=70), max_size=5))
def test_the_crcs_of_parts_combine_to_that_of_the_whole(kind: Kind, parts: list[bytes]) -> None:
    whole = naive(kind, b"".join(parts))
    assert hashed(kind, *parts) == whole
    crcs = [(int.from_bytes(hashed(kind, part), "big"), len(part)) for part in parts]
    assert combined(kind, crcs) == whole


@pytest.mark.parametrize("kind", CRCS)
@given(at=st.integers(0, 199_999), bit=st.integers(0, 7))
def test_a_bit_turned_anywhere_shows_in_the_combination(kind: Kind, at: int, bit: int) -> None:
    data = bytes(200_000)
    other = data[:at] + bytes([1 << bit]) + data[at + 1 :]

    def of(body: bytes) -> bytes:
        parts = [body[start : start + 65_536] for start in range(0, len(body), 65_536)]
        return combined(kind, [(int.from_bytes(hashed(kind, part), "big"), len(part)) for part in parts])

    assert of(data) == hashed(kind, data) != of(other)


def test_the_check_values_of_the_catalogue() -> None:
    assert {kind: hashed(kind, b"123456789").hex() for kind in CRCS} == {
        Kind.CRC64NVME: "ae8b14860a799888", Kind.CRC32C: "e3069283", Kind.CRC32: f"{zlib.crc32(b'123456789'):x}",
    }  # fmt: skip


def header(kind: Kind, data: bytes) -> tuple[str, str]:
    return f"x-amz-checksum-{kind.value}", b64encode(hashed(kind, data)).decode()


FULL = ("x-amz-checksum-type", "FULL_OBJECT")
CRC64 = header(Kind.CRC64NVME, b"abc")
ONE_UPLOAD = f'"{md5(b"abc").hexdigest()}"'
PARTS = f'"{md5(b"abc").hexdigest()}-3"'
OPAQUE = ('"v1"', '"v1-3"', '"-CJKq8ZeL"', '""', ONE_UPLOAD.replace('"', ""), f"W/{ONE_UPLOAD}", f'"{"g" * 32}"')


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ((CRC64, FULL), Kind.CRC64NVME),
        ((CRC64,), Kind.CRC64NVME),
        ((header(Kind.CRC32, b"abc"), FULL), Kind.CRC32),
        ((header(Kind.CRC32C, b"abc"),), Kind.CRC32C),
        ((header(Kind.SHA1, b"abc"),), Kind.SHA1),
        ((header(Kind.SHA256, b"abc"),), Kind.SHA256),
        # The cheapest of several.
        ((header(Kind.SHA256, b"abc"), header(Kind.CRC32, b"abc")), Kind.CRC32),
        # A checksum of the checksums of parts.
        ((CRC64, ("x-amz-checksum-type", "COMPOSITE")), None),
        ((("x-amz-checksum-crc32", CRC64[1] + "-3"),), None),
        ((("x-amz-checksum-sha256", header(Kind.SHA256, b"abc")[1] + "-12"),), None),
        # Nonsense, and a length of another kind.
        ((("x-amz-checksum-crc64nvme", "not base64!"),), None),
        ((("x-amz-checksum-crc32", CRC64[1]),), None),
        ((("x-amz-checksum-crc32", ""),), None),
        ((), None),
    ],
)
def test_which_checksum_of_the_whole_object_headers_state(headers: Headers, kind: Kind | None) -> None:
    proof = checksum_of('"v1-3"' if FULL in headers else ONE_UPLOAD, headers)
    assert proof == (None if kind is None else ContentProof(kind, hashed(kind, b"abc")))


@given(
    etag=st.sampled_from((ONE_UPLOAD, ONE_UPLOAD.upper(), PARTS, *OPAQUE)),
    kind=st.sampled_from(Kind),
    form=st.sampled_from(("FULL_OBJECT", "full_object", "COMPOSITE", "composite", "", "FULL_OBJECT, COMPOSITE", None)),
    suffix=st.sampled_from(("", "-1", "-3", "-10000")),
    data=st.binary(max_size=20),
)
def test_a_checksum_proves_nothing_unless_it_must_be_of_the_whole_object(
    etag: str, kind: Kind, form: str | None, suffix: str, data: bytes
) -> None:
    name, value = header(kind, data)
    headers = ((name, value + suffix), *(() if form is None else (("x-amz-checksum-type", form),)))
    is_whole = form in ("FULL_OBJECT", "full_object") or (form is None and etag.lower() == ONE_UPLOAD)
    expected = ContentProof(kind, hashed(kind, data)) if is_whole and not suffix else None
    assert checksum_of(etag, headers) == expected
    # Nor does the ETag of an upload in parts.
    version = ObjectVersion(ObjectRef("b", "k"), PARTS, 1, headers)
    assert small_proof_of(version) == checksum_of(PARTS, headers)


@pytest.mark.parametrize(
    ("etag", "headers", "is_md5"),
    [
        (f'"{md5(b"abc").hexdigest()}"', (), True),
        (f'"{md5(b"abc").hexdigest()}"', (("x-amz-server-side-encryption", "AES256"),), True),
        (f'"{md5(b"abc").hexdigest()}"', (("x-amz-server-side-encryption", "aws:kms"),), False),
        (f'"{md5(b"abc").hexdigest()}"', (("x-amz-server-side-encryption", "aws:kms:dsse"),), False),
        (f'"{md5(b"abc").hexdigest()}"', (("x-amz-server-side-encryption-customer-algorithm", "AES256"),), False),
        (f'"{md5(b"abc").hexdigest()}-2"', (), False),
        (f'"{sha1(b"abc").hexdigest()}"', (), False),
        ('"v1"', (), False),
    ],
)
def test_which_etags_may_be_md5s(etag: str, headers: Headers, is_md5: bool) -> None:
    assert md5_of(etag, headers) == (ContentProof(Kind.MD5, md5(b"abc").digest()) if is_md5 else None)


def test_a_dear_hash_is_computed_of_small_objects_only() -> None:
    sha = ("x-amz-checksum-sha256", b64encode(sha256(b"").digest()).decode())

    def kind(size: int, *headers: tuple[str, str]) -> Kind | None:
        version = ObjectVersion(ObjectRef("b", "k"), f'"{md5().hexdigest()}"', size, headers)
        return None if (proof := small_proof_of(version)) is None else proof.kind

    assert [kind(size) for size in (256 * 1024, 256 * 1024 + 1)] == [Kind.MD5, None]
    assert [kind(size, sha) for size in (64 * 1024, 128 * 1024, 128 * 1024 + 1)] == [Kind.SHA256, Kind.SHA256, Kind.MD5]
    assert kind(8 * 2**20, sha, CRC64) is Kind.CRC64NVME
