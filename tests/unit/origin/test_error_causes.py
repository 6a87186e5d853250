"""Errors of the origin whose cause is the proxy's clock or its credentials."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.origin.error_causes import (
    REMEDIES,
    blames_credentials,
    clock_offset,
    code_of,
    message_of,
    refusal_of_credentials,
    without_signers,
)

NOW = 1_750_000_000.0
SKEWED = "RequestTimeTooSkewed"


def date(seconds: float) -> str:
    return formatdate(NOW + seconds, usegmt=True)


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"<Error><Code>ExpiredToken</Code></Error>", "ExpiredToken"), (b"", None), (b"<Code></Code>", None),
     (b"<Code>" + b"x" * 100 + b"</Code>", None), (b"\xff<html>", None)],
)  # fmt: skip
def test_the_code_of_an_error_document(body: bytes, code: str | None) -> None:
    assert code_of(body) == code


@pytest.mark.parametrize(
    ("status", "code", "named"),
    [(403, "SignatureDoesNotMatch", "SignatureDoesNotMatch"), (400, "ExpiredToken", "ExpiredToken"),
     (400, "TokenRefreshRequired", "ExpiredToken"), (400, None, "ExpiredToken"), (403, None, None),
     (403, "AccessDenied", None), (400, "InvalidArgument", None)],
)  # fmt: skip
def test_a_refusal_of_the_credentials_has_a_remedy(status: int, code: str | None, named: str | None) -> None:
    assert refusal_of_credentials(status, code) == named
    assert named is None or named in REMEDIES


@given(st.binary() | st.text().map(lambda text: f"<Message>{text}</Message>".encode("utf-8", "surrogatepass")))
def test_the_message_of_any_document_is_one_short_line_that_can_be_shown(body: bytes) -> None:
    message = message_of(body)
    assert len(message) <= 300
    assert message.isprintable()


def test_the_message_of_an_error_document() -> None:
    assert message_of(b"<Code>A</Code><Message>\n No &quot;b&quot;\n  here </Message>") == 'No "b" here'
    assert message_of(b"<html>") == ""


@pytest.mark.parametrize(
    ("body", "left"),
    [(b"<Error><Code>A</Code><Token-0>t</Token-0><Token-12>u\nv</Token-12><HostId>h</HostId></Error>",
      b"<Error><Code>A</Code><HostId>h</HostId></Error>"),
     (b"<StringToSign>a<b></StringToSign><StringToSignBytes>61</StringToSignBytes><Code>A</Code>", b"<Code>A</Code>"),
     # The element is cut off or closed by another one. All that follows may belong to it.
     (b"<Code>A</Code><CanonicalRequest>GET\n/", b"<Code>A</Code>"),
     (b"<Code>A</Code><Token-0>t</Token-1></Error>", b"<Code>A</Code>"),
     (b"<Message>the Token-0 of <Token>x</Token></Message>", b"<Message>the Token-0 of <Token>x</Token></Message>"),
     (b"", b""), (b"\xff<html>", b"\xff<html>")],
)  # fmt: skip
def test_the_parts_for_the_signer_alone_are_left_out(body: bytes, left: bytes) -> None:
    assert without_signers(body) == left


@pytest.mark.parametrize(
    ("status", "code", "blamed"),
    [(400, "ExpiredToken", True), (403, "InvalidAccessKeyId", True), (403, "AccessDenied", False),
     (400, "BadDigest", False), (403, "SignatureDoesNotMatch", False), (400, None, True), (403, None, False)],
)  # fmt: skip
def test_which_refusals_blame_the_credentials(status: int, code: str | None, blamed: bool) -> None:
    assert blames_credentials(status, code) is blamed


@pytest.mark.parametrize(
    ("status", "code", "stated", "before", "after"),
    [
        (403, SKEWED, date(3600), 0.0, 3600.0),
        (403, SKEWED, date(-3600), 0.0, -3600.0),
        (403, None, date(3600), 0.0, 3600.0),
        (403, None, date(600), 0.0, None),
        (403, "AccessDenied", date(3600), 0.0, None),
        (400, SKEWED, date(3600), 0.0, None),
        (403, SKEWED, None, 0.0, None),
        (403, SKEWED, "yesterday", 0.0, None),
        # The request was signed with the origin's time already.
        (403, None, date(3600), 3600.0, None),
        (403, SKEWED, date(0), 0.0, None),
        # The request was refused although it was signed with that time: the origin goes by another clock than its date.
        (403, SKEWED, date(3600), 3600.0, 0.0),
        # The proxy's clock was set right meanwhile.
        (403, SKEWED, date(0), 3600.0, 0.0),
    ],
)
def test_the_clock_offset_follows_from_the_origins_date(
    status: int, code: str | None, stated: str | None, before: float, after: float | None
) -> None:
    assert clock_offset(status, code, stated, NOW, before) == after
