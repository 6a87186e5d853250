"""Pages of a LIST: as the bucket writes them, and malformed ones."""

from __future__ import annotations

from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.s3.list_page import ListedObject, ListPage, parse_page

ENCODED = b"<EncodingType>url</EncodingType>"
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


def as_listed(key: str, size: int) -> ListedObject:
    return ListedObject(key, size, '"abc"', "2026-01-01T00:00:00Z")


def page(objects: list[tuple[str, int]], token: str | None = None) -> bytes:
    contents = "".join(
        f"<Contents><Key>{quote_plus(key, safe='/')}</Key><LastModified>2026-01-01T00:00:00Z</LastModified>"
        f"<ETag>&#34;abc&#34;</ETag><Size>{size}</Size></Contents>"
        for key, size in objects
    )
    more = "" if token is None else f"<NextContinuationToken>{token}</NextContinuationToken>"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="{NAMESPACE}"><Name>b</Name>'
        f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{contents}{more}{ENCODED.decode()}"
        "</ListBucketResult>"
    ).encode()


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), min_size=1), st.integers(0, 2**50)), max_size=5))
def test_keys_and_sizes_come_back_in_order(objects: list[tuple[str, int]]) -> None:
    assert parse_page(page(objects)) == ListPage(tuple(as_listed(*entry) for entry in objects), is_encoded=True)


def test_a_page_that_is_not_the_last_names_the_next() -> None:
    assert parse_page(page([("a", 1)], "xyz")) == ListPage((as_listed("a", 1),), True, "xyz", is_encoded=True)


def test_a_page_of_version_1_names_the_next_by_a_key() -> None:
    body = page([("a", 1)], "x%2By").replace(b"NextContinuationToken", b"NextMarker")
    assert parse_page(body) == ListPage((as_listed("a", 1),), True, None, "x+y", is_encoded=True)
    assert parse_page(body.replace(ENCODED, b"")) == ListPage((as_listed("a", 1),), True, None, "x%2By")


def test_a_page_that_is_cut_short_without_a_token_is_not_the_last() -> None:
    body = page([("a", 1)], "xyz").replace(b"NextContinuationToken", b"Other")
    assert parse_page(body) == ListPage((as_listed("a", 1),), True, is_encoded=True)


def test_a_page_that_does_not_say_whether_it_is_the_last_is_so_without_a_token() -> None:
    element = b"<IsTruncated>true</IsTruncated>"
    assert parse_page(page([("a", 1)], "xyz").replace(element, b"")) == ListPage(
        (as_listed("a", 1),), True, "xyz", is_encoded=True
    )
    assert parse_page(page([("a", 1)], "").replace(element, b"")) == ListPage((as_listed("a", 1),), is_encoded=True)


def test_keys_are_decoded_only_where_the_page_says_that_they_are_encoded() -> None:
    body = page([("a+%41 b", 1)])
    assert parse_page(body.replace(ENCODED, b"")) == ListPage((as_listed("a%2B%2541+b", 1),))


@pytest.mark.parametrize("size", ["", "one", "-1", "9" * 5000])
def test_a_size_that_is_no_number_is_unknown(size: str) -> None:
    body = page([("a", 1)]).replace(b"<Size>1", f"<Size>{size}".encode())
    assert parse_page(body) == ListPage((as_listed("a", -1),), is_encoded=True)


@pytest.mark.parametrize("encoding", ["UTF-2", "none", "utf-7", "base64", "rot13"])
def test_a_page_in_an_encoding_that_nobody_knows_is_none(encoding: str) -> None:
    assert parse_page(page([("a", 1)]).replace(b"UTF-8", encoding.encode())) is None


def test_a_page_whose_key_holds_elements_is_none() -> None:
    """Parsers take other texts for the key."""
    assert parse_page(page([("a", 1)]).replace(b"<Key>a", b"<Key>a<Key>b</Key>c")) is None


def test_common_prefixes_show_that_keys_are_left_out() -> None:
    body = page([("a", 1)]).replace(ENCODED, b"<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>" + ENCODED)
    assert parse_page(body) == ListPage((as_listed("a", 1),), groups=("b/",), is_encoded=True)


def test_an_object_is_the_version_that_has_its_bytes_and_its_date() -> None:
    listed = ListedObject("a", 1, '"abc"', "2026-01-01T00:00:00.519Z")
    date = "Thu, 01 Jan 2026 00:00:00 GMT"
    assert listed.is_version('"abc"', 1, date)
    assert not listed.is_version('"abd"', 1, date)
    assert not listed.is_version('"abc"', 2, date)
    assert not listed.is_version('"abc"', 1, "Thu, 01 Jan 2026 00:00:01 GMT"), "put again, perhaps with other headers"
    assert not listed.is_version('"abc"', 1, None)
    assert not ListedObject("a", 1, "", listed.modified).is_version("", 1, date)
    assert not ListedObject("a", 1, '"abc"', "lately").is_version('"abc"', 1, None), (
        "two that state no date are not one"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Error><Code>AccessDenied</Code></Error>",
        page([("a", 1)])[:-5],
        page([("a", 1)]).replace(b"<Key>a</Key>", b""),
        page([("", 1)]),
        b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]>' + page([("a", 1)]).partition(b"\n")[2],
    ],
)
def test_a_body_that_is_no_page_gives_none(body: bytes) -> None:
    assert parse_page(body) is None


@given(st.binary())
def test_nothing_else_comes_of_anything_else(body: bytes) -> None:
    assert parse_page(body) is None
