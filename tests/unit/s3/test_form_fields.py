"""The fields of browser uploads: forms made by hand are parsed, into whatever pieces they are cut."""

from __future__ import annotations

import contextlib
import email.message
import email.parser
import email.policy
import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.errors import (
    InvalidArgument,
    KeyTooLong,
    MalformedPOSTRequest,
    MaxPostPreDataLengthExceeded,
    S3Error,
)
from outrider.core.model import Headers
from outrider.core.s3.form_fields import FIELDS_BYTES_MAX, FieldsReader, FileScanner, PostForm, boundary_of, is_form
from outrider.core.s3.operation import classify
from tests.support.forms import BOUNDARY, encoded

FORM = "multipart/form-data; boundary=x"
# Bytes at which a careless search for the end of the file would fail.
tricky = st.lists(
    st.sampled_from([b"\r\n", b"\r", b"\n", b"--", b"-", BOUNDARY.encode(), BOUNDARY.encode()[:9], b"a", b"\0"])
).map(b"".join)
values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.text("abcdefXYZ-", min_size=1, max_size=8).filter(lambda name: name.lower() != "file")


def read(body: bytes, cuts: tuple[int, ...] = ()) -> tuple[PostForm, bytes, bytes]:
    """The form, its file, and all bytes that are sent to the origin from the first byte of the file on."""
    reader, scanner = FieldsReader(BOUNDARY), None
    file, form = b"", None
    for start, stop in pairwise(sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})):
        piece = body[start:stop]
        if scanner is None:
            if (found := reader.feed(piece)) is None:
                continue
            form, piece = found
            scanner = FileScanner(BOUNDARY)
        file += scanner.feed(piece)
    if scanner is None or form is None:
        raise MalformedPOSTRequest
    return form, file, file + scanner.ending()


def ends_a_file(file: bytes) -> bool:
    framed = b"\r\n" + file + b"\r\n--"
    return any(end + f"--{BOUNDARY}".encode() in framed for end in (b"\r", b"\n"))


@given(
    st.lists(st.tuples(names, values), max_size=4, unique_by=lambda pair: pair[0].lower()),
    tricky.filter(lambda file: not ends_a_file(file)),
    st.lists(st.tuples(names, values), max_size=2),
    st.lists(st.integers(0, 10**6), max_size=6).map(tuple),
)
def test_a_form_is_read_as_it_was_meant_however_it_is_cut(
    fields: list[tuple[str, str]], file: bytes, after: list[tuple[str, str]], cuts: tuple[int, ...]
) -> None:
    body = encoded(fields, file, "dir/f.bin", after, "text/x")
    form, got, sent = read(body, cuts)
    assert (list(form.fields), got, form.filename, form.file_type) == (fields, file, "f.bin", "text/x")
    # No byte after the file is sent on, and the announced length stays true.
    head = encoded(fields, b"", "dir/f.bin", (), "text/x")
    assert len(sent) == len(body) - head.rindex(f"\r\n--{BOUNDARY}--".encode())
    assert sent == file + f"\r\n--{BOUNDARY}--".encode() + sent[len(file) + len(BOUNDARY) + 6 :]
    assert sent[len(file) + len(BOUNDARY) + 6 :].strip() == b""


@given(st.lists(st.tuples(names, values), max_size=4, unique_by=lambda pair: pair[0].lower()), tricky)
def test_another_parser_reads_our_head_alike(fields: list[tuple[str, str]], file: bytes) -> None:
    """Python's MIME parser is the oracle. It ends lines at more characters than the form does, so values have no line
    breaks."""
    fields = [(name, "".join(value.split())) for name, value in fields if value.isprintable()]
    form = PostForm(BOUNDARY, tuple(fields), "", None)
    body = form.head(fields) + f"\r\n--{BOUNDARY}--\r\n".encode()
    parsed = email.parser.BytesParser(policy=email.policy.compat32).parsebytes(
        f"Content-Type: {form.content_type}\r\n\r\n".encode() + body
    )
    read = []
    for part in parsed.get_payload():
        assert isinstance(part, email.message.Message)
        value = part.get_payload(decode=True)
        assert isinstance(value, bytes)
        read.append((part.get_param("name", header="content-disposition"), value.decode()))
    assert read == [*fields, ("file", "")]


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=3).map(tuple))
def test_any_bytes_are_a_form_or_an_s3_error(raw: bytes, cuts: tuple[int, ...]) -> None:
    for body in (raw, f"--{BOUNDARY}\r\n".encode() + raw, encoded([], b"")[:-9] + raw):
        with contextlib.suppress(S3Error):
            read(body, cuts)


@pytest.mark.parametrize("raw", [b"\xe9", "é".encode(), "é".encode() + b"\xe9", "日\u2028".encode()])
def test_the_heads_of_parts_keep_their_bytes(raw: bytes) -> None:
    """Also those that are no UTF-8: a browser writes a file's name in the encoding of its page."""
    body = encoded([("key", "up/${filename}")], b"x", "f-NAME.bin", file_type="a/b; c=NAME").replace(b"NAME", raw)
    form, file, _ = read(body)
    text = raw.decode("utf-8", "surrogateescape")
    assert (form.filename, form.key, form.file_type, file) == (
        f"f-{text}.bin",
        f"up/f-{text}.bin",
        f"a/b; c={text}",
        b"x",
    )
    assert b"Content-Type: a/b; c=" + raw + b"\r\n" in form.head(form.fields)


def test_a_name_in_the_form_of_rfc_2231_is_decoded() -> None:
    body = encoded([("key", "${filename}")], b"", "f").replace(b'filename="f"', b"filename*=utf-8''%C3%A9%E6%97%A5")
    assert read(body)[0].key == "é日"


def test_a_boundary_beside_odd_bytes_is_found() -> None:
    assert boundary_of("multipart/form-data; boundary=x; a=é\udcff") == "x"
    with pytest.raises(MalformedPOSTRequest):
        boundary_of("multipart/form-data; boundary=é\udcff")


def test_a_file_that_begins_with_a_delimiter_ends_there() -> None:
    """Some parsers see a part there. The key that they would find must not pass for bytes of the file."""
    evil = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="key"\r\n\r\nevil\r\n'.encode()
    _, file, sent = read(encoded([("key", "good")], evil + b"rest"))
    assert file == b""
    assert sent.startswith(f"--{BOUNDARY}--".encode())
    assert b"evil" not in sent


@pytest.mark.parametrize("end", ["\n", "\r", "\n\n", "x\n"])
@pytest.mark.parametrize("place", ["value", "file"])
@pytest.mark.parametrize("cuts", [(), tuple(range(1000))])
def test_a_delimiter_behind_any_other_end_of_a_line_is_refused(end: str, place: str, cuts: tuple[int, ...]) -> None:
    """Parsers that take LF, or CR, for the end of a line would see a part there, and another key."""
    evil = f'a{end}--{BOUNDARY}{end}Content-Disposition: form-data; name="key"{end}{end}evil'
    body = encoded([("key", "good"), ("x-ignore-a", evil if place == "value" else "")],
                   evil.encode() if place == "file" else b"x")  # fmt: skip
    with pytest.raises(MalformedPOSTRequest):
        read(body, cuts)


def test_a_boundary_within_a_line_is_a_part_of_the_value() -> None:
    body = encoded([("key", f"k--{BOUNDARY}")], f"a--{BOUNDARY}\n-{BOUNDARY}".encode())
    form, file, _ = read(body)
    assert (form.key, file) == (f"k--{BOUNDARY}", f"a--{BOUNDARY}\n-{BOUNDARY}".encode())


def test_the_head_of_a_part_is_parsed_once_however_slowly_its_value_comes() -> None:
    """A client that sends the value byte by byte would have cost as much CPU time for each as the whole head does."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="key"{";a=b" * 450}\r\n\r\n'.encode()

    def cost(pieces: Iterable[bytes]) -> float:
        reader, began = FieldsReader(BOUNDARY), time.process_time()
        for piece in pieces:
            assert reader.feed(piece) is None
        return time.process_time() - began

    at_once = min(cost([head + b"v" * 1000]) for _ in range(3))
    assert cost([head, *[b"v"] * 1000]) < 50 * at_once


def test_an_empty_field_may_have_no_line_of_its_own() -> None:
    body = encoded([("a", ""), ("b", "c")], b"x").replace(b'"a"\r\n\r\n\r\n', b'"a"\r\n\r\n')
    assert read(body)[0].fields == (("a", ""), ("b", "c"))


def test_fields_may_come_with_a_file_name_as_pythons_requests_sends_them() -> None:
    body = encoded([("key", "k")], b"x").replace(b'name="key"', b'name="key"; filename="key"')
    assert read(body)[0].fields == (("key", "k"),)


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda b: b"--wrong" + b[2:], MalformedPOSTRequest),
        (lambda b: b.replace(b"--", b"-x", 1), MalformedPOSTRequest),
        (lambda b: b.replace(b'"key"', b'"key"\r\ncontent-disposition: form-data; name="b"'), MalformedPOSTRequest),
        (lambda b: b.replace(b'"file"', b'"file"\r\ncontent-type: a\rX: y'), MalformedPOSTRequest),
        (lambda b: b"preamble\r\n" + b, MalformedPOSTRequest),
        (lambda b: b.replace(b'; name="key"', b""), MalformedPOSTRequest),
        (lambda b: b.replace(b"form-data", b"attachment", 1), MalformedPOSTRequest),
        (lambda b: b.replace(b'"key"', b'"k\xc3\xa9y"'), MalformedPOSTRequest),
        (lambda b: b.replace(b"Content-Disposition: form", b"Content-Disposition form", 1), MalformedPOSTRequest),
        (lambda b: b.replace(b"\r\n\r\nk\r\n", b"\r\n folded: x\r\n\r\nk\r\n"), MalformedPOSTRequest),
        (lambda b: b.replace(b'"key"', b'"key"\nX: y'), MalformedPOSTRequest),
        (lambda b: b.replace(b"\r\n", b"\n"), MalformedPOSTRequest),
        (lambda b: b.replace(BOUNDARY.encode() + b"\r\n", BOUNDARY.encode() + b"x\r\n"), MalformedPOSTRequest),
        (lambda b: b[: b.rindex(b"--")], MalformedPOSTRequest),
        (lambda b: b[:-30], MalformedPOSTRequest),
        (lambda b: b.replace(b'name="file"', b'name="other"'), InvalidArgument),
        (lambda b: b[: b.index(b"--", 5)] + f"--{BOUNDARY}--\r\n".encode(), InvalidArgument),
    ],
)  # fmt: skip
def test_a_body_that_is_no_form_is_refused(damage: object, error: type[S3Error]) -> None:
    good = encoded([("key", "k")], b"file")
    assert read(good)[1] == b"file"
    with pytest.raises(error):
        read(damage(good))  # type: ignore[operator]


def test_a_field_may_come_once_only_in_any_case() -> None:
    with pytest.raises(MalformedPOSTRequest, match="twice"):
        read(encoded([("key", "a"), ("Key", "b")], b""))


@pytest.mark.parametrize("name", ["x-amz-copy-source", "X-Amz-Copy-Source-Range", "x-amz-rename-source"])
def test_a_form_cannot_copy(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot copy"):
        read(encoded([("key", "a"), (name, "secret/key")], b""))


def test_the_fields_before_the_file_have_a_limit_and_the_file_has_none() -> None:
    assert len(read(encoded([("key", "k" * (FIELDS_BYTES_MAX - 400))], b"x" * 10 * FIELDS_BYTES_MAX))[1]) > 10**5
    for cuts in ((), tuple(range(0, FIELDS_BYTES_MAX, 1000))):
        with pytest.raises(MaxPostPreDataLengthExceeded):
            read(encoded([("key", "k" * FIELDS_BYTES_MAX)], b"x"), cuts)
    with pytest.raises(MaxPostPreDataLengthExceeded):
        FieldsReader(BOUNDARY).feed(f"--{BOUNDARY}\r\n".encode() + b"x" * FIELDS_BYTES_MAX)


def test_the_bytes_after_the_file_have_a_limit() -> None:
    read(encoded([], b"x", after=[("submit", "Upload")]))
    for cuts in ((), (300, 10_000, 20_000)):
        with pytest.raises(MalformedPOSTRequest, match="last field"):
            read(encoded([], b"x", after=[("more", "m" * FIELDS_BYTES_MAX)]), cuts)


@pytest.mark.parametrize(
    ("key", "filename", "meant"),
    [
        ("k", "f", "k"),
        ("up/${filename}", "a b.txt", "up/a b.txt"),
        ("${filename}/${filename}", "f", "f/f"),
        ("up/${filename}", "/home/me/f", "up/f"),
        ("up/${filename}", "é/ü", "up/ü"),
        ("up/$filename", "f", "up/$filename"),
        # A folder in a file's name would leave the prefix that the policy and the grant allow.
        ("up/${filename}", "../../f", "up/f"),
    ],
)
def test_the_name_of_the_file_stands_in_the_key(key: str, filename: str, meant: str) -> None:
    form = read(encoded([("kEy", key)], b"", filename))[0]
    assert form.key == meant
    assert form.values["key"] == meant


def test_a_path_of_windows_gives_its_last_name() -> None:
    assert PostForm("x", (("key", "${filename}"),), "f", None).key == "f"
    assert read(encoded([("key", "${filename}")], b"", "C:\\\\dir\\\\f.txt"))[0].key == "f.txt"


@pytest.mark.parametrize("filename", [None, "", "a${filename}", "/"])
def test_a_key_that_origins_would_expand_otherwise_is_refused(filename: str | None) -> None:
    with pytest.raises(InvalidArgument, match="filename"):
        _ = read(encoded([("key", "up/${filename}")], b"", filename))[0].key


def test_a_key_longer_than_s3_allows_is_refused() -> None:
    for key, filename, extra in (("k" * 1024, "f", "k"), ("k" * 500 + "${filename}", "f" * 524, "k")):
        assert len(read(encoded([("key", key)], b"", filename))[0].key) == 1024
        with pytest.raises(KeyTooLong):
            _ = read(encoded([("key", key + extra)], b"", filename))[0].key


@pytest.mark.parametrize("end", ["", '"'])
def test_a_header_that_takes_long_to_read_is_refused_by_its_length(end: str) -> None:
    """The library takes quadratic time for semicolons in quotes (16 KiB of them: 0.2 s), and for many headers."""
    with pytest.raises(MalformedPOSTRequest):
        boundary_of(f'multipart/form-data; boundary=x; a="{";" * 16_000}{end}')
    with pytest.raises(MalformedPOSTRequest):
        read(encoded([("key", "k")], b"", ";" * 16_000))
    with pytest.raises(MalformedPOSTRequest):
        read(f"--{BOUNDARY}\r\n{''.join(f'h{number}:' + chr(13) + chr(10) for number in range(2000))}\r\n".encode())
    assert read(encoded([("key", "${filename}")], b"", ";" * 1024))[0].key == ";" * 1024


def test_a_form_without_a_key_is_refused_as_such() -> None:
    for fields in ([], [("key", "")]):
        with pytest.raises(InvalidArgument, match="field named 'key'"):
            _ = read(encoded(fields, b""))[0].key


@pytest.mark.parametrize(
    ("kind", "boundary"),
    [(f"multipart/form-data; boundary={BOUNDARY}", BOUNDARY),
     ('multipart/form-data; charset=utf-8; boundary="a b"', "a b"), ("Multipart/Form-Data;boundary=x", "x")],
)  # fmt: skip
def test_the_boundary_is_found(kind: str, boundary: str) -> None:
    assert boundary_of(kind) == boundary


@pytest.mark.parametrize("value", ["", "; boundary=", '; boundary=""', "; boundary=" + "x" * 71, '; boundary="a\\"b"',
                                   "; boundary=é", '; boundary="x "', "; boundary*=utf-8''x"])  # fmt: skip
def test_a_boundary_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(MalformedPOSTRequest):
        boundary_of("multipart/form-data" + value)


@pytest.mark.parametrize(
    ("method", "target", "headers", "expected"),
    [
        ("POST", "/bkt", (("content-type", FORM),), True),
        ("POST", "/bkt/", (("content-type", "Multipart/Form-Data;boundary=x"),), True),
        ("PUT", "/bkt", (("content-type", FORM),), False),
        ("POST", "/bkt/key", (("content-type", FORM),), False),
        ("POST", "/", (("content-type", FORM),), False),
        ("POST", "/bkt?delete", (("content-type", FORM),), False),
        ("POST", "/bkt?invented-tomorrow", (("content-type", FORM),), False),
        ("POST", "/bkt", (("content-type", "multipart/mixed; boundary=x"),), False),
        ("POST", "/bkt", (), False),
        ("POST", "/bkt", (("content-type", FORM), ("authorization", "AWS4-HMAC-SHA256 ...")), False),
    ],
)
def test_only_an_unsigned_post_of_a_bucket_with_multipart_form_data_is_a_form(
    method: str, target: str, headers: Headers, expected: bool
) -> None:
    assert is_form(classify(method, target, headers), headers) == expected
