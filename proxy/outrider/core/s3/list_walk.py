"""How to ask for a LIST, and how its pages go on from each other, at stores of any age."""

from __future__ import annotations

from outrider.core.errors import OriginBroke
from outrider.core.s3.list_page import ListPage
from outrider.core.s3.operation import Query

LIST_FORMS: tuple[Query, ...] = (
    (("encoding-type", "url"), ("list-type", "2")),
    (("encoding-type", "url"),),
    (),
)
"""Ways to ask for a LIST, the best first: older stores refuse version 2, or `encoding-type`."""
NOT_UNDERSTOOD = (400, 501)
"""Statuses by which stores refuse a parameter that they do not know."""


class ListWalk:
    """Checks that the pages of one LIST go on from each other and leave nothing out."""

    def __init__(self, *, delimited: bool = False) -> None:
        """`delimited`: the request has a delimiter, so that common prefixes stand for the keys under them."""
        self._delimited = delimited
        self._first_names: set[str] = set()
        # The continuation tokens and markers.
        self._marks: set[str] = set()
        # With a way on by the last name, all names of the next page must come after it.
        self._after: bytes | None = None

    def take(self, page: ListPage) -> None:
        """Raises OriginBroke: the page is one of the pages before, or does not show all keys."""
        if page.groups and not self._delimited:
            raise OriginBroke("its LIST hides keys under common prefixes, without a delimiter in the request")
        names = _names(page)
        if not names:
            return
        first = names[0]
        # A store may take a common prefix as a key to go on from, and show that prefix again.
        is_after = self._after is None or _bytes_of(names[-1 if self._delimited else 0]) > self._after
        if first in self._first_names or not is_after:
            raise OriginBroke(f"its LIST comes to the key {first!r} again and does not go on")
        self._first_names.add(first)

    def way_on(self, page: ListPage) -> Query:
        """The parameters that ask for the page after `page`. Raises OriginBroke: there is no way on."""
        self._after = None
        mark = page.next_token or page.next_marker
        if mark is not None:
            if mark in self._marks:
                raise OriginBroke("its LIST goes on from the same place twice, and would have no end")
            self._marks.add(mark)
            return (("continuation-token" if page.next_token else "marker", mark),)
        names = _names(page)
        keys = [_bytes_of(name) for name in names]
        if not keys or keys != sorted(keys):
            raise OriginBroke("its LIST is truncated, with neither a continuation token nor a last key to go on from")
        self._after = keys[-1]
        # `marker` is of version 1, `start-after` of version 2; each version ignores the other's. A store that does not
        # know version 2 answers with a page of version 1, which need not give a marker: the last key is it (S3 API
        # reference, ListObjects: NextMarker).
        return (("marker", names[-1]), ("start-after", names[-1]))


def _names(page: ListPage) -> list[str]:
    """The keys as received; with common prefixes, which a page shows apart from the keys, in the order of S3."""
    keys = [listed.key for listed in page.objects]
    return sorted([*keys, *page.groups], key=_bytes_of) if page.groups else keys


def _bytes_of(name: str) -> bytes:
    # S3 sorts by the bytes of UTF-8 (S3 user guide, "Listing object keys programmatically").
    return name.encode("utf-8", "surrogateescape")
