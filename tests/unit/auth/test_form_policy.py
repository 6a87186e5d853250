"""Policies of browser uploads: botocore signs and the proxy verifies; conditions are compared with a simple model."""

from __future__ import annotations

import contextlib
import json
from base64 import b64decode, b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import errors
from outrider.core.auth.form_policy import Condition, FormPolicy, SizeRange, parse_policy, signed_anew, signer_of
from outrider.core.auth.sigv4 import Credentials, SigningKeys
from outrider.core.s3.form_fields import PostForm
from tests.support.forms import LATER, Fields, policy, signed, signed_as_it_stands

KEYS = ("FORMKEY", "form/secret+")
ORIGIN = Credentials("ORIGINKEY", "origin-secret", "origin/token")
NOW = 1_800_000_000.0
BASE = {"key": "up/k"}
BASE_CONDITIONS: list[Any] = [{"bucket": "bkt"}, ["starts-with", "$key", "up/"]]


def form(fields: Fields, filename: str = "f") -> PostForm:
    return PostForm("x", tuple(fields.items()), filename, None)


def made(fields: Fields, conditions: list[Any], version: str = "s3v4", keys: tuple[str, str] = KEYS) -> PostForm:
    return form(signed({**BASE, **fields}, policy([*BASE_CONDITIONS, *conditions]), keys, version))


def check(upload: PostForm, now: float = NOW, bucket: str = "bkt", known: tuple[str, str] = KEYS) -> SizeRange:
    assert signer_of(upload, secret_of=dict([known]).get, keys=SigningKeys()) == known[0]
    allowed = parse_policy(upload.values["policy"])
    allowed.check(upload, bucket, now)
    return allowed.sizes


def text_of(document: Any) -> str:
    return b64encode((document if isinstance(document, str) else json.dumps(document)).encode()).decode()


@pytest.mark.parametrize("version", ["s3", "s3v4"])
@given(key=st.text(max_size=20).filter(lambda text: text.isprintable() and "${" not in text))
def test_a_form_that_botocore_signs_is_accepted(version: str, key: str) -> None:
    upload = made({"key": "up/" + key}, [], version)
    assert check(upload) == SizeRange()
    with pytest.raises(errors.SignatureDoesNotMatch):
        check(upload, known=(KEYS[0], "another"))
    with pytest.raises(errors.InvalidAccessKeyId):
        check(upload, known=("another", KEYS[1]))


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_changed_policy_is_refused(version: str) -> None:
    upload = made({}, [], version)
    wider = text_of(policy([{"bucket": "bkt"}, ["starts-with", "$key", ""]]))
    with pytest.raises(errors.SignatureDoesNotMatch):
        check(form({**dict(upload.fields), "policy": wider}))


def test_names_of_fields_and_words_of_a_policy_may_be_in_any_case() -> None:
    conditions = [{"bUcKeT": "bkt"}, ["StArTs-WiTh", "$KeY", "up/"], {"AcL": "private"}, ["EQ", "$CoNtEnT-TyPe", "a/b"],
                  ["CONTENT-length-RANGE", "1", 2]]  # fmt: skip
    document = policy(conditions)
    fields = signed_as_it_stands({"kEy": "up/k", "aCl": "private", "Content-Type": "a/b"}, json.dumps(document), KEYS)
    mixed = {("pOLICy" if name == "policy" else name.swapcase()): value for name, value in fields.items()}
    assert check(form(mixed)) == SizeRange(1, 2)


DENIED: dict[str, tuple[Fields, list[Any]]] = {
    "another value": ({"acl": "public-read"}, [{"acl": "private"}]),
    "another beginning": ({"Content-Type": "image/x"}, [["starts-with", "$Content-Type", "text/"]]),
    "one content type of several": ({"Content-Type": "text/a,image/x"}, [["starts-with", "$Content-Type", "text/"]]),
    "a field that is wanted and missing": ({}, [["eq", "$x-amz-meta-a", "b"]]),
    "a field under no condition": ({"x-amz-meta-a": "b"}, []),
    "an acl under no condition": ({"acl": "public-read"}, []),
    "a redirect under no condition": ({"success_action_redirect": "http://evil"}, []),
    "one condition of two": ({"acl": "a"}, [{"acl": "a"}, {"acl": "b"}]),
    "another key": ({"key": "elsewhere/k"}, []),
    "another bucket": ({}, [{"bucket": "other"}]),
}


@pytest.mark.parametrize("case", DENIED)
@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_a_form_that_the_policy_does_not_allow_is_denied(case: str, version: str) -> None:
    fields, conditions = DENIED[case]
    with pytest.raises(errors.AccessDenied, match=r"^Invalid according to Policy: (Policy Condition|Extra input)"):
        check(made(fields, conditions, version))


@pytest.mark.parametrize(
    ("fields", "conditions"),
    [
        ({"x-ignore-foo": "anything"}, []),
        ({"acl": "private"}, [{"acl": "private"}]),
        ({"acl": "private"}, [["eq", "$acl", "private"]]),
        ({"x-amz-meta-a": "anything"}, [["starts-with", "$x-amz-meta-a", ""]]),
        ({"Content-Type": "text/a, text/b"}, [["starts-with", "$Content-Type", "text/"]]),
        ({}, [["starts-with", "$x-amz-meta-a", ""]]),
        ({"key": "up/${filename}"}, [["eq", "$key", "up/f"]]),
    ],
)
def test_a_form_that_the_policy_allows_is_accepted(fields: Fields, conditions: list[Any]) -> None:
    check(made(fields, conditions))


def test_the_bucket_and_the_key_must_be_under_a_condition() -> None:
    for conditions in ([BASE_CONDITIONS[0]], [BASE_CONDITIONS[1]]):
        with pytest.raises(errors.AccessDenied, match="Extra input fields"):
            check(form(signed(BASE, policy(conditions), KEYS, "s3")))


def test_a_policy_expires() -> None:
    upload = form(signed(BASE, policy(BASE_CONDITIONS, "2027-01-15T08:00:00.000Z"), KEYS))
    assert check(upload, NOW - 1) == SizeRange()
    with pytest.raises(errors.AccessDenied, match="Policy expired"):
        check(upload, NOW)


NO_POLICIES = [
    "", "{}", "[]", "null", "{", '{"expiration": "' + LATER + '"}', '{"conditions": [{"a": "b"}]}', "[" * 15_000,
    {"EXPIRATION": LATER, "conditions": [{"a": "b"}]}, {"expiration": LATER, "CONDITIONS": [{"a": "b"}]},
    {**policy([{"a": "b"}]), "more": 1}, policy([]), policy([{}]), policy([[]]), policy([["eq", "$a"]]), policy([None]),
    policy([["eq", "a", "b"]]), policy([["matches", "$a", "b"]]), policy([["eq", "$a", 1]]), policy([{"a": 1}]),
    policy([{"a": "b"}, ["content-length-range", 0]]), policy([{"a": "b"}, ["content-length-range", -1, 0]]),
    policy([{"a": "b"}, ["content-length-range", "x", 0]]), policy([{"a": "b"}, ["content-length-range", 0, True]]),
    policy([{"a": "b"}, ["content-length-range", 0, 10**19]]), policy([{"a": "b"}, ["content-length-range", 0, 1.5]]),
    {"expiration": LATER, "conditions": {"a": "b"}}, policy([{"a": "b"}], "2030-01-01 00:00:00"),
    policy([{"a": "b"}], "2030-13-01T00:00:00Z"), policy([{"a": "b"}], "2030-01-01T00:00:00"),
    {"expiration": 1, "conditions": [{"a": "b"}]},
]  # fmt: skip


@pytest.mark.parametrize("document", NO_POLICIES, ids=lambda document: json.dumps(document)[:60])
def test_a_document_that_is_no_policy_is_refused(document: Any) -> None:
    assert parse_policy(text_of(policy([{"a": "b"}])))
    with pytest.raises(errors.InvalidPolicyDocument):
        parse_policy(text_of(document))


@pytest.mark.parametrize("encoded", ["", "!", "e30", "e30=\n", "é", text_of(policy([{"a": "b"}])) + "\n"])
def test_a_policy_that_is_not_base64_is_refused(encoded: str) -> None:
    with pytest.raises(errors.InvalidPolicyDocument):
        parse_policy(encoded)


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_each_field_of_a_signature_must_be_there(version: str) -> None:
    fields = dict(made({}, [], version).fields)
    for name in fields.keys() - {"key"}:
        rest = {n: v for n, v in fields.items() if n != name}
        with pytest.raises(errors.InvalidArgument, match=f"field named '{name.lower()}'"):
            check(form(rest))


def test_an_unsigned_or_twice_signed_form_is_refused() -> None:
    with pytest.raises(errors.AccessDenied, match="Anonymous"):
        check(form(BASE))
    twice = {**dict(made({}, [], "s3").fields), **dict(made({}, []).fields)}
    with pytest.raises(errors.InvalidArgument, match="once"):
        check(form(twice))


@pytest.mark.parametrize(
    "change",
    [{"x-amz-algorithm": "AWS4-HMAC-SHA512"}, {"x-amz-date": "today"}, {"x-amz-credential": "FORMKEY"},
     {"x-amz-date": "20200101T000000Z"}, {"x-amz-credential": "FORMKEY/20260101/r/ec2/aws4_request"}],
)  # fmt: skip
def test_a_signature_that_says_nonsense_is_refused(change: Fields) -> None:
    with pytest.raises(errors.InvalidArgument):
        check(form({**dict(made({}, []).fields), **change}))


words = st.sampled_from(["", "a", "ab", "b", "a,ab"])
names = st.sampled_from(["acl", "x-amz-meta-a", "content-type", "tagging"])


@given(
    st.dictionaries(names, words),
    st.lists(st.tuples(st.sampled_from(["eq", "starts-with"]), names, words), max_size=4),
)
def test_a_policy_allows_what_a_simple_model_allows(fields: Fields, stated: list[tuple[str, str, str]]) -> None:
    conditions = tuple(
        Condition(*condition) for condition in (*stated, ("eq", "bucket", "bkt"), ("starts-with", "key", "up/"))
    )
    expected = all(name in {s[1] for s in stated} for name in fields)
    for operator, name, wanted in stated:
        value = fields.get(name, "")
        if operator == "eq":
            expected = expected and value == wanted
        elif name == "content-type":
            expected = expected and all(part.startswith(wanted) for part in value.split(","))
        else:
            expected = expected and value.startswith(wanted)
    try:
        FormPolicy(NOW + 1, conditions, SizeRange()).check(form({**BASE, **fields}), "bkt", NOW)
        allowed = True
    except errors.AccessDenied:
        allowed = False
    assert allowed == expected


@given(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 5)), st.integers(0, 6))
def test_a_file_must_be_of_the_size_that_was_allowed(start: int, stop: int | None, size: int) -> None:
    sizes = SizeRange(start, stop)
    wanted: type[errors.S3Error] | None = None
    if stop is not None and size > stop:
        wanted = errors.EntityTooLarge
    elif size < start:
        wanted = errors.EntityTooSmall
    if wanted is None:
        sizes.check(size)
    else:
        with pytest.raises(wanted):
            sizes.check(size)


def test_two_size_ranges_both_hold() -> None:
    ranges = [["content-length-range", 1, 9], ["content-length-range", 3, 7], ["content-length-range", 2, 8]]
    assert check(made({}, ranges)) == SizeRange(3, 7)


# -- signed anew for the origin ---------------------------------------------------------------------------------------


def anew(upload: PostForm, credentials: Credentials | None = ORIGIN) -> PostForm:
    return form(dict(signed_anew(upload, "bkt", credentials, "eu-west-1", NOW, SigningKeys())))


@pytest.mark.parametrize("version", ["s3", "s3v4"])
@given(fields=st.dictionaries(names, words))
def test_an_allowed_form_is_allowed_when_signed_anew(version: str, fields: Fields) -> None:
    sizes = [["content-length-range", 1, 9]]
    upload = made({**fields, "x-amz-security-token": "the client's"},
               [*({name: value} for name, value in fields.items()), {"x-amz-security-token": "the client's"}, *sizes],
               version)  # fmt: skip
    renewed = anew(upload)
    assert check(renewed, known=(ORIGIN.access_key, ORIGIN.secret_key)) == SizeRange(1, 9)
    assert renewed.values.items() >= {**fields, "x-amz-security-token": ORIGIN.session_token}.items()
    assert KEYS[0] not in b64decode(renewed.values["policy"]).decode() + json.dumps(dict(renewed.fields))


def test_a_denied_form_is_denied_by_the_origin_too() -> None:
    for fields, conditions in DENIED.values():
        with pytest.raises(errors.AccessDenied):
            check(anew(made(fields, conditions)), known=(ORIGIN.access_key, ORIGIN.secret_key))


def test_a_form_without_a_policy_gets_one_for_just_its_fields() -> None:
    renewed = anew(form({"key": "up/${filename}", "acl": "private"}))
    check(renewed, known=(ORIGIN.access_key, ORIGIN.secret_key))
    assert renewed.values["key"] == "up/f"
    with pytest.raises(errors.AccessDenied):
        check(form({**dict(renewed.fields), "key": "up/g"}), known=(ORIGIN.access_key, ORIGIN.secret_key))


def test_a_policy_that_cannot_be_read_goes_on_as_it_stands() -> None:
    for broken in ("", "!", text_of("{"), text_of({"expiration": LATER})):
        assert anew(form({**BASE, "policy": broken})).values["policy"] == broken


def test_without_credentials_the_form_is_anonymous() -> None:
    assert anew(made({"acl": "private"}, []), None).fields == (("key", "up/k"), ("acl", "private"))


leaves = st.one_of(st.text(max_size=5), st.integers(), st.none())
documents = st.recursive(
    leaves, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=9), inner))
)


@given(documents)
def test_no_document_makes_it_fail(document: Any) -> None:
    for malformed in (document, {"expiration": LATER, "conditions": document}, policy([document])):
        anew(form({**BASE, "policy": text_of(malformed)}))
        with contextlib.suppress(errors.InvalidPolicyDocument):
            parse_policy(text_of(malformed))
