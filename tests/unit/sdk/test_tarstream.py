"""The SDK's reader of a batch, by the proxy's own tar in pieces of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.s3 import tar
from outrider_sdk.tarstream import TarStream

entries = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=120),
        st.binary(max_size=1200),
        st.sampled_from([(), (("OUTRIDER.x-cache", "HIT"),), (("OUTRIDER.status", "404"),)]),
    ),
    max_size=5,
)


@given(entries, st.integers(1, 3000))
def test_entries_come_whole_and_in_order_in_pieces_of_any_size(
    written: list[tuple[str, bytes, tuple[tuple[str, str], ...]]], piece_bytes: int
) -> None:
    data = b"".join(
        tar.entry_head(name, len(body), more) + body + tar.padding(len(body)) for name, body, more in written
    )
    data += tar.END
    stream, read = TarStream(), []
    for start in range(0, len(data), piece_bytes):
        for content, records in stream.feed(data[start : start + piece_bytes]):
            ours = tuple((name, value) for name, value in records.items() if name.startswith("OUTRIDER."))
            read.append((content, ours))
    assert read == [(body, more) for _, body, more in written]


def test_an_entry_that_the_proxy_does_not_write_is_an_error() -> None:
    link = bytearray(tar.entry_head("b/k", 0))
    link[156] = ord("2")
    with pytest.raises(ValueError, match="kind 50"):
        list(TarStream().feed(bytes(link)))
