"""Targets: bodies that clients send. They are refused by an S3 error of the 400s, or mean what they mean to others."""

from __future__ import annotations

import email.parser
import email.policy
import json
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from xml.etree import ElementTree as ET

from outrider.core.ahead.hint_messages import parse_plan, parse_stall
from outrider.core.auth.form_policy import is_unsigned, parse_policy, signed_anew, signer_of
from outrider.core.errors import S3Error
from outrider.core.maintenance.object_list import count_of, parse_list
from outrider.core.operator.wishes import WishError, wishes_of
from outrider.core.s3 import operation, tar
from outrider.core.s3.aws_chunked import ChunkedDecoder, TrailerEncoder
from outrider.core.s3.batch import parse_batch
from outrider.core.s3.form_fields import FieldsReader, FileScanner, PostForm
from outrider.core.s3.xml import keys_to_delete
from tests.fuzz.request_bytes import allowed, check_refusal
from tests.fuzz.target import pieces, target
from tests.support import forms, signed_requests
from tests.support.signed_requests import SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER, Chunked, checksum

_BODY = b"0123456789" * 7
_HEAD = [("authorization", f"x Signature={'a' * 64}"), ("x-amz-date", "20260101T000000Z")]
_SIGNING = signed_requests.chunk_signing(_HEAD, "secret")
_CRC = ("x-amz-checksum-crc32", checksum("crc32", _BODY))
_FORMS = (
    (UNSIGNED_TRAILER, _CRC), (UNSIGNED_TRAILER, None), (SIGNED, None), (SIGNED_TRAILER, _CRC),
)  # fmt: skip


def _chunked_seeds() -> Iterator[bytes]:
    for number, (form, trailer) in enumerate(_FORMS):
        for chunk_bytes in (16, 70, 100):
            wire = Chunked(_BODY, form, trailer, chunk_bytes).encode(_SIGNING if form != UNSIGNED_TRAILER else None)
            yield bytes((number, chunk_bytes)) + wire
            if chunk_bytes == 16:
                yield from (bytes((number, 0)) + changed for changed in _in_another_order(wire))


def _in_another_order(wire: bytes) -> Iterator[bytes]:
    """The first chunk and the second one change places, the first one is left out, and comes twice."""
    stop = wire.index(b"\r\n", wire.index(b"\r\n") + 2) + 2
    first, second, rest = wire[:stop], wire[stop : 2 * stop], wire[2 * stop :]
    yield from (second + first + rest, second + rest, first + first + second + rest)


def _decoded(form: str, trailer: object, parts: Iterator[bytes]) -> tuple[bytes, bool]:
    names = frozenset([_CRC[0]]) if trailer else frozenset()
    decoder = ChunkedDecoder(
        len(_BODY) if form != UNSIGNED_TRAILER else None, _SIGNING if form != UNSIGNED_TRAILER else None, names,
        trailers_expected=form != SIGNED,
    )  # fmt: skip
    got = bytearray()
    try:
        for part in parts:
            for piece in decoder.feed(part):
                got += piece
        decoder.finish()
    except S3Error as error:
        check_refusal(error)
        return bytes(got), False
    if trailer:
        assert decoder.trailers[_CRC[0]] == b64encode(zlib.crc32(got).to_bytes(4, "big")).decode()
    return bytes(got), True


@target(more=_chunked_seeds(), bytes_max=1024)
def aws_chunked_body(data: bytes) -> None:
    """A body is the same in any pieces, and whole only if its signatures, its length and its checksum hold."""
    form, trailer = _FORMS[data[0] % len(_FORMS)] if data else _FORMS[0]
    wire = data[2:]
    at_once, whole = _decoded(form, trailer, iter((wire,)))
    in_pieces, also_whole = _decoded(form, trailer, pieces(wire, data[1] if len(data) > 1 else 0))
    assert whole == also_whole
    if whole:
        assert at_once == in_pieces
        assert form == UNSIGNED_TRAILER or at_once == _BODY
    elif form != UNSIGNED_TRAILER:
        assert max(len(at_once), len(in_pieces)) < len(_BODY), "the last byte of a bad body was given out"


@target(bytes((7, 3)) + _BODY, b"\0\0", bytes_max=512)
def aws_chunked_body_encoded(data: bytes) -> None:
    """A body that the proxy encodes is decoded to the same, and is as long as it said."""
    chunk_bytes, body = (data[0] + 1 if data else 1), data[2:]
    stated = b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    encoder = TrailerEncoder(len(body), {_CRC[0]: len(stated)}, chunk_bytes)
    framed = [bytes(out) for part in pieces(body, data[1] if len(data) > 1 else 0) for out in encoder.feed(part)]
    wire = b"".join([*framed, encoder.finish({_CRC[0]: stated})])
    assert len(wire) == encoder.encoded_length
    assert _decoded(UNSIGNED_TRAILER, _CRC, iter((wire,))) == (body, True)


_FIELDS = {"key": "up/${filename}", "Content-Type": "a/b"}
_POLICY = forms.policy([{"bucket": "b"}, ["starts-with", "$key", "up/"], ["content-length-range", 0, 100]])
# Not by botocore, which signs the time of now: a corpus outlives the run that made it.
_SIGNED_FORMS = [
    forms.signed_as_it_stands(
        _FIELDS, json.dumps(_POLICY), (signed_requests.AWS.access_key, signed_requests.AWS.secret_key)
    ),
    dict(
        signed_anew(
            PostForm("x", tuple(_FIELDS.items()), "f", None),
            "b",
            signed_requests.AWS,
            "r",
            signed_requests.AT,
            signed_requests.KEYS,
        )
    ),
]


_ODD_PARTS = (
    b"form-data; name*=utf-8''key", b"form-data; name*0=ke; name*1=y", b"form-data; name=x; name=y", b"form-data",
    b"form-data; name=file; filename*=bogus''%ff", b"form-data; name=file; filename*=utf-8''%00%0d",
    b"form-data; name=file; filename*0*=utf-8''a; filename*1=b", b"attachment; name=key", b'form-data; name="k',
)  # fmt: skip


def _form_seeds() -> Iterator[bytes]:
    for part in _ODD_PARTS:
        yield b"\7--" + forms.BOUNDARY.encode() + b"\r\nContent-Disposition : " + part + b"\r\n\r\nk\r\n--"
    for fields in (*_SIGNED_FORMS, {"key": "k", "acl": "private", "x-ignore-a": "é"}, {"key": ""},
                   {"x": f"a\n--{forms.BOUNDARY}\r\n", "key": "k"}):  # fmt: skip
        for after in ((), (("submit", "Upload"),)):
            seed = b"\7" + forms.encoded(fields.items(), b"the\r\n--file\r\n", "dir/f.bin", after, "text/x")
            yield seed
            yield seed.replace(b"f.bin", b"\xc3\xa9\xff.bin")
            yield seed.replace(b"the\r\n--", b"the\n--" + forms.BOUNDARY.encode())


def _form_read(parts: Iterator[bytes] | tuple[bytes, ...]) -> tuple[PostForm, bytes, bytes] | None:
    """The form, its file, and the bytes after the file as they go to the origin. None: an S3 error."""
    reader, scanner = FieldsReader(forms.BOUNDARY), None
    form, file = None, b""
    try:
        for part in parts:
            piece = part
            if scanner is None:
                if (found := reader.feed(piece)) is None:
                    continue
                form, piece = found
                scanner = FileScanner(forms.BOUNDARY)
            file += scanner.feed(piece)
        return None if scanner is None or form is None else (form, file, scanner.ending())
    except S3Error as error:
        check_refusal(error)
        return None


@target(more=_form_seeds(), bytes_max=2048)
def form_upload(data: bytes) -> None:
    """A form is the same in any pieces. As it goes to the origin, another parser reads the same fields and file."""
    body = data[1:]
    read = _form_read((body,))
    assert _form_read(pieces(body, data[0] if data else 0)) == read
    if read is None:
        return
    form, file, ending = read
    assert len(form.head(form.fields)) > 0
    again = _form_read((form.head(form.fields) + file + ending,))
    assert again is not None
    assert (again[0].fields, again[1]) == (form.fields, file)
    _check_as_email(form, file, ending)
    with suppress(S3Error):
        is_unsigned(form)
        parse_policy(form.values.get("policy", "")).check(form, "b", signed_requests.AT)
    with suppress(S3Error):
        signer_of(form, secret_of=signed_requests.secret_of, keys=signed_requests.KEYS)
        policy = form.values["policy"]
        assert any(policy == fields["policy"] for fields in _SIGNED_FORMS), "a policy that nobody signed"
    with suppress(S3Error):
        signed_anew(form, "b", signed_requests.AWS, "r", signed_requests.AT, signed_requests.KEYS)


def _check_as_email(form: PostForm, file: bytes, ending: bytes) -> None:
    wire = form.head(form.fields) + file + ending
    head = f"Content-Type: {form.content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + wire)
    names = [part.get_param("name", header="content-disposition") for part in message.iter_parts()]
    assert names == [*(name for name, _ in form.fields), "file"], names


@target(
    *(fields["policy"].encode() for fields in _SIGNED_FORMS),
    b64encode(b'{"expiration": "2030-12-31T12:00:00.000Z", "conditions": [["eq", "$acl", "x"], {"bucket": "b"}, 1]}'),
)
def post_policy(data: bytes) -> None:
    """Any base64, and any JSON in base64, is a policy or a client's error."""
    for encoded in (data.decode("utf-8", "surrogateescape"), b64encode(data).decode()):
        policy = allowed(parse_policy, encoded)
        form = PostForm("x", (("key", "k"), ("policy", encoded)), "f", None)
        if policy is not None:
            allowed(policy.check, form, "b", signed_requests.AT)
        allowed(
            lambda form: signed_anew(form, "b", signed_requests.AWS, "r", signed_requests.AT, signed_requests.KEYS),
            form,
        )


@target(
    b"<?xml version='1.0'?>\n<Delete xmlns='u'><Object><Key>a&amp;b</Key><VersionId>1</VersionId></Object>"
    b"<Quiet>true</Quiet><!-- c --><Object><Key><![CDATA[<b>]]></Key></Object></Delete>",
    b"<?xml version='1.0' encoding='UTF-2'?><Delete><Object><Key>k</Key></Object></Delete>",
    b"<Delete><x:Object xmlns:x='u'><x:Key>&#x41;</x:Key></x:Object><?p i?></Delete>",
    b"<Delete><Other><Key>o</Key></Other><Object><Key>a<!-- c -->b</Key><Key/></Object></Delete>",
    b"<Delete><Object><Key>a<?p i?>b</Key></Object></Delete>",
    b"<Delete><Object><Key>a<b/>c</Key></Object></Delete>",
    b"<!DOCTYPE a><Delete><Object><Key>a</Key></Object></Delete>",
)
def keys_of_a_deletion(data: bytes) -> None:
    """Each key that a strict parser finds, which takes an element's first text for all of it, is among ours."""
    ours = keys_to_delete(data)
    if ours is None:
        return
    with suppress(ET.ParseError):  # prefixes are looked at by the other alone
        _check_keys(ours, data)


def _check_keys(ours: list[str], data: bytes) -> None:
    root = ET.fromstring(data, ET.XMLParser(target=ET.TreeBuilder(insert_comments=True, insert_pis=True)))
    for entry in root:
        for key in entry:
            if not callable(entry.tag) and not callable(key.tag) and entry.tag.rpartition("}")[2] == "Object":
                assert key.tag.rpartition("}")[2] != "Key" or (key.text or "") in ours


@target(
    b"# comment\ns3://bucket/key\ns3://bucket/prefix/\ns3://b.c/shard-{000..012}.tar\n",
    b"s3://bucket/{a,b}/{9..1}\r\ns3://bucket\n\xef\xbb\xbf",
    bytes_max=65536,
)
def object_list(data: bytes) -> None:
    """A list names objects that each can be asked for, as many as it counts."""
    found = allowed(lambda body: parse_list(body, objects_max=5000), data)
    if found is not None:
        assert all(operation.ref_of(str(ref)) == ref for ref in found.refs)
    for line in data.decode("utf-8", "surrogateescape").splitlines()[:3]:
        with suppress(UnicodeError):
            allowed(count_of, line)


@target(
    b'{"reads": ["s3://bucket/key", "s3://b.c/\\u00e9\\udcff"], "start": 0, "total": 12}',
    b'{"steps": 10, "wait_s": 1.5, "compute_s": 2e3, "epoch": 1}',
    b'{"reads": [], "start": 1e400, "total": NaN}',
    b'{"reads": ["s3://bucket/key", {"url": "s3://bucket/\\u00e9", "range": "bytes=3-9"}], "errors": "batch"}',
)
def messages_of_a_job(data: bytes) -> None:
    plan, stall, batch = allowed(parse_plan, data), allowed(parse_stall, data), allowed(parse_batch, data)
    if batch is not None:
        for read in batch.reads:
            head = tar.entry_head(str(read.ref).removeprefix("s3://"), 7)
            assert len(head) % tar.BLOCK_BYTES == 0
    if plan is not None:
        assert all(ref.key.encode("utf-8", "surrogateescape") for ref in plan.refs)
        assert plan.start >= 0
    if stall is not None:
        assert stall.plus(stall).wait_s == 2 * stall.wait_s


@target(
    b"outrider.dev/schedule=true\noutrider.dev/data=s3://b/{0..9} s3://b/p/\noutrider.dev/warm=95 %\n"
    b"outrider.dev/warm-deadline=15m\noutrider.dev/inject=endpoint",
    b"outrider.dev/schedule=true\noutrider.dev/data=s3://b/k\noutrider.dev/warm=0.5\noutrider.dev/inject=sidecar",
    bytes_max=16384,
)
def wishes_of_a_pod(data: bytes) -> None:
    fields: Mapping[str, str] = {
        name: value for name, _, value in (line.partition("=") for line in data.decode("utf-8", "replace").split("\n"))
    }
    labels = {name: value for name, value in fields.items() if name.rpartition("/")[2] in ("schedule", "inject")}
    with suppress(WishError):
        wishes = wishes_of(labels, {name: value for name, value in fields.items() if name not in labels})
        assert wishes.warm is None or 0 < wishes.warm <= 1
        assert 0 < wishes.deadline_s <= 86400
