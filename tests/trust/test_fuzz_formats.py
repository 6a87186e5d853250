"""Fuzz tests of a request's parsers: each input is refused, or read as other servers read it.

`tests/fuzz` has the rest of the parsers: forms, chunks, signatures, pages of a LIST, keys of a deletion.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.auth.grants import AccessLevel, Client, Grant, missing_grant
from outrider.core.s3.list_page import parse_page
from outrider.core.s3.operation import OperationKind, classify
from outrider.core.s3.xml import keys_to_delete
from tests.support.trials import Trials, fuzzing

# -- XML --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", [parse_page, keys_to_delete])
def test_xml_of_any_depth_costs_no_more_than_its_length(trials: Trials, parse: Any) -> None:
    """Without the limit on depth this body took half a minute, because the time grew with the square of the depth."""
    assert parse(b"<a>" * 200_000 + b"</a>" * 200_000) is None
    assert parse(b"<ListBucketResult>" + b"<a>" * 15 + b"</a>" * 15 + b"</ListBucketResult>") is not None
    trials.record("fuzz", "XML that is 200,000 elements deep", "refused")


BOMB = (
    b'<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9))
    + b"]>"
)


@pytest.mark.parametrize("parse", [parse_page, keys_to_delete])
@pytest.mark.parametrize("dtd", [BOMB, b'<!DOCTYPE d [<!ENTITY j SYSTEM "file:///etc/passwd">]>', b"<!DOCTYPE d>"])
def test_no_entity_expands(trials: Trials, parse: Any, dtd: bytes) -> None:
    assert (
        parse(dtd + b"<ListBucketResult><Contents><Key>&j;</Key><Size>1</Size></Contents></ListBucketResult>") is None
    )
    assert parse(dtd + b"<Delete><Object><Key>&j;</Key></Object></Delete>") is None
    trials.record("fuzz", "XML with a DTD", "refused")


# -- keys --------------------------------------------------------------------------------------------------------------

SEGMENTS = st.sampled_from(
    ["team", "..", ".", "", "other", "x", "...", "..\\", "\\..", "a\\b", "team\\..", "%2e%2e", "..;"]
)
TEAM = Client("team", "AK", (Grant("bkt", "team/", AccessLevel.WRITE),))


def resolved(key: str, *, backslashes: bool, collapsing: bool, rooted: bool) -> str | None:
    """A path that a file server may make of a key. None means that the path leaves the bucket."""
    path = key.replace("\\", "/") if backslashes else key
    cached: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            if not cached and not rooted:
                return None
            del cached[-1:]
        elif segment != "." and not (collapsing and not segment):
            cached.append(segment)
    return "/".join(cached)


@given(
    st.lists(SEGMENTS, max_size=6).map(lambda more: "/".join(["team", *more])),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@fuzzing(160, of=500)
def test_a_granted_key_stays_under_its_prefix_in_every_reading(
    trials: Trials, key: str, backslashes: bool, collapsing: bool, rooted: bool
) -> None:
    operation = classify("GET", "/bkt/" + quote(key, safe="/"), ()) if key else None
    listed = classify("GET", f"/bkt?prefix={quote(key, safe='')}", ())
    granted = operation is not None and missing_grant(TEAM, operation) is None
    for asked in (granted, missing_grant(TEAM, listed) is None):
        if asked and any(segment in (".", "..") for segment in key.replace("\\", "/").split("/")):
            meant = resolved(key, backslashes=backslashes, collapsing=collapsing, rooted=rooted)
            assert meant is not None
            assert meant.startswith("team/") or meant == "team", (key, meant)
    trials.record("fuzz", "keys with dots, doubled slashes and backslashes", "granted" if granted else "refused")


def test_a_cacheable_read_is_of_a_get_or_head_alone() -> None:
    for method in ("PUT", "POST", "DELETE", "PATCH", "OPTIONS", "get", "TRACE"):
        assert classify(method, "/bkt/k", ()).kind is OperationKind.FORWARD
