"""The pages of a LIST, before a store too simple to be wrong: whichever way it goes on, all names come, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import OriginBroke
from outrider.core.s3.list_page import ListedObject, ListPage
from outrider.core.s3.list_walk import ListWalk

if TYPE_CHECKING:
    from outrider.core.s3.operation import Query

KEYS = st.lists(st.text("ab/\xe9\U0001f638", min_size=1, max_size=4), unique=True, max_size=30)


def names_of(keys: list[str], *, delimited: bool) -> list[str]:
    """The keys and common prefixes that a LIST shows, in the order of S3."""
    cut = (key.partition("/") if delimited else (key, "", "") for key in keys)
    return sorted({head + slash for head, slash, _ in cut}, key=lambda name: name.encode())


def page_of(keys: list[str], query: Query, size: int, way: str, *, delimited: bool) -> ListPage:
    """`way`: how the store goes on: by a token, a marker, or not a word; `as keys`: not a word, and with a common
    prefix as marker it shows that prefix again, as its keys come after it."""
    asked = dict(query)
    after = (asked.get("continuation-token") or asked.get("marker") or "").encode()
    if way == "as keys":
        names = names_of([key for key in keys if key.encode() > after], delimited=delimited)
    else:
        names = [name for name in names_of(keys, delimited=delimited) if name.encode() > after]
    shown, more = names[:size], len(names) > size
    mark = shown[-1] if more else None
    groups = tuple(name for name in shown if delimited and name.endswith("/"))
    objects = tuple(ListedObject(name, 1) for name in shown if name not in groups)
    return ListPage(objects, more, mark if way == "token" else None, mark if way == "marker" else None, groups)


@given(KEYS, st.integers(2, 6), st.sampled_from(["token", "marker", "none", "as keys"]), st.booleans())
def test_all_names_come_in_each_way_to_go_on(keys: list[str], size: int, way: str, delimited: bool) -> None:
    walk, found = ListWalk(delimited=delimited), set()
    query: Query = ()
    for _ in range(len(keys) + 2):
        page = page_of(keys, query, size, way, delimited=delimited)
        walk.take(page)
        found |= {*(listed.key for listed in page.objects), *page.groups}
        if not page.is_truncated:
            break
        query = walk.way_on(page)
    assert found == set(names_of(keys, delimited=delimited))


@pytest.mark.parametrize("way", ["token", "none"])
def test_a_store_that_sends_the_same_page_again_and_again_is_left(way: str) -> None:
    page = ListPage((ListedObject("a", 1),), True, "t" if way == "token" else None, None, ("b/",))
    walk = ListWalk(delimited=True)
    walk.take(page)
    walk.way_on(page)
    with pytest.raises(OriginBroke, match="again"):
        walk.take(page)


def test_common_prefixes_that_nobody_asked_for_hide_keys() -> None:
    with pytest.raises(OriginBroke, match="hides keys"):
        ListWalk().take(ListPage((), groups=("b/",)))
