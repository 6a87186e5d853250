"""The entries of a tar, read back by Python's own reader as a stream."""

from __future__ import annotations

import io
import tarfile

from hypothesis import example, given
from hypothesis import strategies as st

from outrider.core.s3 import tar

# Python's reader takes the slash from the end of a name.
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=150).map(lambda name: f"{name}k")
contents = st.binary(max_size=1500)
records = st.sampled_from([(), (("OUTRIDER.x-cache", "HIT"),), (("OUTRIDER.status", "404"), ("OUTRIDER.x", "é\n="))])


def written(entries: list[tuple[str, bytes, tuple[tuple[str, str], ...]]]) -> bytes:
    parts = [tar.entry_head(name, len(data), more) + data + tar.padding(len(data)) for name, data, more in entries]
    return b"".join(parts) + tar.END


@given(st.lists(st.tuples(names, contents, records), max_size=4))
@example([("b/" + "k" * 98, b"", ()), ("b/" + "k" * 99, b"x", ()), ("b/" + "é" * 49, b"y" * 512, ())])
@example([("x" * size, b"z", ()) for size in range(970, 1000)])  # where the length of a record gains a digit
def test_a_stream_reads_back_names_contents_and_records(
    entries: list[tuple[str, bytes, tuple[tuple[str, str], ...]]],
) -> None:
    read = []
    with tarfile.open(fileobj=io.BytesIO(written(entries)), mode="r|") as stream:
        for member in stream:
            content = stream.extractfile(member)
            assert content is not None
            assert member.isreg()
            ours = {name: value for name, value in member.pax_headers.items() if name.startswith("OUTRIDER.")}
            read.append((member.name, content.read(), tuple(ours.items())))
    assert read == entries


def test_the_bytes_of_a_name_that_are_no_utf_8_are_kept() -> None:
    name = "b/\udcff\udcfe.bin"
    with tarfile.open(fileobj=io.BytesIO(written([(name, b"1", ())])), mode="r|") as stream:
        assert [member.name.encode("utf-8", "surrogateescape") for member in stream] == [b"b/\xff\xfe.bin"]


def test_a_size_that_ustar_does_not_hold_is_a_record() -> None:
    size = 8**11
    with tarfile.open(fileobj=io.BytesIO(tar.entry_head("b/k", size)), mode="r:") as head:
        read = head.next()
    assert read is not None
    assert (read.name, read.size) == ("b/k", size)


@given(names, contents)
def test_the_length_of_an_entry_is_known_before_its_content(name: str, data: bytes) -> None:
    head = tar.entry_head(name, len(data))
    assert tar.entry_bytes(head, len(data)) == len(head + data + tar.padding(len(data)))
    assert tar.entry_bytes(head, len(data)) % tar.BLOCK_BYTES == 0
