"""The integrity of a body: the hash, length and checksums that a request's headers state, and their verification."""

from __future__ import annotations

import base64
import zlib
from hashlib import md5, sha1, sha256, sha512

import anycrc
import pytest

from outrider.core import errors
from outrider.core.s3.body_integrity import (
    CHECKSUM_CHARS,
    UNSIGNED,
    PayloadForm,
    PayloadRule,
    body_checksum,
    check_checksum_form,
    decoded_length_of,
    payload_rule,
    trailer_names_of,
)
from tests.support.signed_requests import (
    EMPTY,
    HOST,
)

RAMP = bytes(i % 251 for i in range(200_000))
CRC32 = "x-amz-checksum-crc32"


@pytest.mark.parametrize("form", [form for form in PayloadForm if form is not PayloadForm.HASHED])
def test_the_payload_forms_are_known_by_their_names(form: PayloadForm) -> None:
    payload = payload_rule([("host", HOST), ("x-amz-content-sha256", form.value)])
    assert payload == PayloadRule(form)
    assert payload.chunked == form.value.startswith("STREAMING")
    assert payload.trailers_expected == form.value.endswith("TRAILER")
    assert payload.chunks_signed == ("HMAC" in form.value)


def test_a_body_without_the_header_is_unsigned() -> None:
    assert payload_rule([("host", HOST)]) == UNSIGNED
    assert payload_rule([("x-amz-content-sha256", EMPTY.upper())]) == PayloadRule(PayloadForm.HASHED, EMPTY)
    assert payload_rule([("content-encoding", "aws-chunked")]) == UNSIGNED


@pytest.mark.parametrize("coding", ["aws-chunked", "gzip,aws-chunked", "gzip, AWS-chunked"])
@pytest.mark.parametrize("stated", [("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-decoded-content-length", "9")])
def test_an_unsigned_body_may_be_in_chunks(coding: str, stated: tuple[str, str]) -> None:
    payload = payload_rule([("content-encoding", coding), stated])
    assert payload.form is PayloadForm.UNSIGNED_CHUNKS_TRAILER


@pytest.mark.parametrize("value", ["", "x", EMPTY[1:], "unsigned-payload", "STREAMING-", f"{EMPTY},{EMPTY}", "a hash"])
def test_an_unknown_payload_is_an_invalid_argument(value: str) -> None:
    with pytest.raises(errors.InvalidArgument):
        payload_rule([("x-amz-content-sha256", value)])


def test_the_elliptic_payloads_are_not_supported() -> None:
    for tail in ("", "-TRAILER"):
        with pytest.raises(errors.InvalidRequest, match="not supported"):
            payload_rule([("x-amz-content-sha256", f"STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD{tail}")])


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        (CRC32, zlib.crc32(RAMP).to_bytes(4, "big")),
        ("x-amz-checksum-sha1", sha1(RAMP).digest()),
        ("x-amz-checksum-sha256", sha256(RAMP).digest()),
        ("x-amz-checksum-sha512", sha512(RAMP).digest()),
        ("x-amz-checksum-md5", md5(RAMP).digest()),
        ("x-amz-checksum-crc32c", anycrc.Model("CRC32C").calc(RAMP).to_bytes(4, "big")),
        ("x-amz-checksum-crc64nvme", anycrc.Model("CRC64-NVME").calc(RAMP).to_bytes(8, "big")),
    ],
)
def test_a_checksum_grows_with_the_body(name: str, digest: bytes) -> None:
    checksum = body_checksum(name)
    assert checksum is not None
    for start in range(0, len(RAMP), 7777):
        checksum.update(memoryview(RAMP)[start : start + 7777])
    stated = base64.b64encode(digest).decode()
    assert checksum.value == stated
    checksum.check(stated)
    assert CHECKSUM_CHARS[name] == len(stated)
    with pytest.raises(errors.BadDigest, match=name):
        checksum.check(stated[:-4] + "AAA=")


def test_checksums_that_are_not_computed_here_are_left_to_the_origin() -> None:
    assert body_checksum("x-amz-checksum-xxhash64") is None
    assert CHECKSUM_CHARS["x-amz-checksum-xxhash64"] == 12
    check_checksum_form("x-amz-checksum-xxhash64", "AAAAAAAAAAA=")


def test_only_checksums_may_be_announced_as_trailers() -> None:
    assert trailer_names_of([("host", "h")]) == frozenset()
    both = [("x-amz-trailer", "X-Amz-Checksum-CRC32, x-amz-checksum-sha1")]
    assert trailer_names_of(both) == {CRC32, "x-amz-checksum-sha1"}
    for value in ("", "x-amz-acl", "authorization", f"{CRC32},", f"{CRC32} x-amz-acl"):
        with pytest.raises(errors.InvalidRequest):
            trailer_names_of([("x-amz-trailer", value)])


def test_a_decoded_length_is_a_plain_number() -> None:
    assert decoded_length_of([]) is None
    assert decoded_length_of([("x-amz-decoded-content-length", " 0012 ")]) == 12
    for value in ("", "-1", "+1", "1_0", "1e3", "１", "9" * 20, "0x1"):
        with pytest.raises(errors.InvalidArgument):
            decoded_length_of([("x-amz-decoded-content-length", value)])
    with pytest.raises(errors.InvalidArgument):
        decoded_length_of([("x-amz-decoded-content-length", "1"), ("x-amz-decoded-content-length", "1")])
