"""Messages as JSON: what is written is read again, as 0.2 wrote it too, and nothing else is."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cluster.held_blocks import HeldBlocks, is_whole
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import (
    BODY_BYTES_MAX,
    OBJECTS_MAX,
    READS_MAX,
    REFS_MAX,
    SHARES_MAX,
    BegunRead,
    Command,
    CommandAnswer,
    DatasetShare,
    DatasetShares,
    Forget,
    Hello,
    ListedPage,
    ListRequest,
    OrderNotice,
    PinPage,
    PinReport,
    PinsReport,
    ReadsNotice,
    SharesRequest,
    forget_body,
    parts_of,
    reads_body,
)
from outrider.core.cluster.object_samples import NUMBERS, REPORTED_MAX
from outrider.core.cluster.wire_forms import WireError, decode, encode
from outrider.core.model import ObjectRef, VersionIdentity

DAY = "Thu, 01 Jan 2026 00:00:00 GMT"
REF, OTHER = ObjectRef("bucket", "key\udcff/é"), ObjectRef("b", "k")

# As members of 0.2 write them, but for fields that are younger: `modified` of a page, `first` of a forget, `copies` of
# a command, `known` and `below` of a share.
GOLDEN: dict[Any, bytes] = {
    Hello(
        Member("n-1", "[fe80::1%eth0]:1", "zone", 10**12, "c:1", (1, 2)), 7, "ring", 3, 1.8e9, is_ready=False,
        is_leaving=True,
    ): b'{"name":"n-1","address":"[fe80::1%eth0]:1","zone":"zone","weight":1000000000000,"cluster":"c:1","wire":[1,2],'
       b'"boot":7,"ring":"ring","forgets":3,"clock":1800000000.0,"ready":false,"leaving":true}',
    Forget("n", 1, 2, (REF, "bucket"), in_doubt=True):
        b'{"from":"n","boot":1,"number":2,"names":[["bucket","key\\udcff/\\u00e9"],"bucket"],"doubt":true,'
        b'"first":null}',
    Command("n", "put", "warm", "o\udcff", "a", b"s3://b/\xff\n", 1.5, 2.0):
        b'{"from":"n","verb":"put","folder":"warm","owner":"o\\udcff","name":"a","list":"czM6Ly9iL/8K","rate":1.5,'
        b'"at":2,"copies":null}',
    OrderNotice("n", 1, 2, 3, "10.0.0.1", (REF, OTHER, ObjectRef("bucket", "2")), 4, 9):
        b'{"from":"n","boot":1,"number":2,"order":3,"client":"10.0.0.1","start":4,"total":9,"withdrawn":false,'
        b'"buckets":["bucket","b"],"reads":[[0,"key\\udcff/\\u00e9"],[1,"k"],[0,"2"]]}',
    OrderNotice("n", 1, 2, 3, "c", is_withdrawn=True):
        b'{"from":"n","boot":1,"number":2,"order":3,"client":"c","start":0,"total":null,"withdrawn":true,"buckets":[],'
        b'"reads":[]}',
    ReadsNotice("n", 2, (BegunRead("10.0.0.1", REF, 5, 0.5), BegunRead("10.0.0.2", OTHER, 0, 0.0))):
        b'{"from":"n","count":2,"readers":["10.0.0.1","10.0.0.2"],"buckets":["bucket","b"],'
        b'"reads":[[0,0,"key\\udcff/\\u00e9",5,500],[1,1,"k",0,0]]}',
    SharesRequest("n"): b'{"from":"n"}',
    ListRequest("n", "b", (("list-type", "2"), ("prefix", "a\udcff/"))):
        b'{"from":"n","bucket":"b","query":[["list-type","2"],["prefix","a\\udcff/"]]}',
    ListedPage(1.5, (("content-type", "application/xml"),), b"\xff\x00"):
        b'{"age":1.5,"headers":[["content-type","application/xml"]],"page":"/wA="}',
    DatasetShares((DatasetShare("b", "a\udcff-{}.tar", 12, 34, 5, 6, ((7, 34),), 9),)):
        b'{"datasets":[{"bucket":"b","name":"a\\udcff-{}.tar","objects":12,"size":34,"held":5,"near":6,"known":[[7,34]],'
        b'"below":9}]}',
    HeldBlocks(((bytes(range(16)), 70, 1 << 69 | 1), None)):
        b'{"here":[["000102030405060708090a0b0c0d0e0f",70,"200000000000000001"],null]}',
    PinsReport((PinReport("AKEY", "mine", 12.5, has_ended=False), PinReport("", "é", 13.0, has_ended=True))):
        b'{"pins":[["AKEY","mine",12.5,false],["","\\u00e9",13.0,true]]}',
    PinPage("team", 1.5, b"s3://b/\xff\n", (
        (ObjectRef("b", "k\udcff"), VersionIdentity('"etag"', 0, DAY)),
        (ObjectRef("b", "é"), VersionIdentity("etag", 7, "")),
    ), more=True):
        b'{"client":"team","at":1.5,"list":"czM6Ly9iL/8K","more":true,"objects":[["b","k\\udcff","\\"etag\\"",0],'
        b'["b","\\u00e9","etag",7]],"modified":["Thu, 01 Jan 2026 00:00:00 GMT",""]}',
}  # fmt: skip
# A dict has no hash.
ANSWERS = [
    (CommandAnswer({"state": "done", "\udcff": [1, None]}, "e", "c"),
     b'{"told":{"state":"done","\\udcff":[1,null]},"error":"e","code":"c"}'),
    (CommandAnswer(), b'{"told":null,"error":"","code":""}'),
]  # fmt: skip

from_wire = st.binary(min_size=1, max_size=60).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
words = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True)
numbers = st.integers(0, 2**63 - 1)
seconds = st.floats(0, 1e10)
refs = st.builds(ObjectRef, from_wire, from_wire)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from((2**63, 10**400, "\ud800")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
MESSAGES: tuple[st.SearchStrategy[Any], ...] = (
    st.builds(
        Hello,
        st.builds(
            Member, words, st.sampled_from(("10.0.0.1:9482", "[fe80::1%eth0]:1", "node-1.local:65535")),
            words | st.just(""), numbers, words, st.tuples(numbers, numbers),
        ),
        numbers, words | st.just(""), numbers, seconds, st.booleans(), st.booleans(),
    ),
    st.builds(Forget, words, numbers, numbers, st.lists(from_wire | refs).map(tuple), st.booleans(),
              st.none() | numbers),
    st.builds(
        Command, words, st.sampled_from(("put", "get", "cancel", "delete", "begin", "list", "objects")),
        st.sampled_from(("warm", "pin", "evict", "verify", "plan")), from_wire, from_wire, st.binary(), seconds,
        seconds, st.none() | numbers,
    ),
    st.builds(CommandAnswer, st.none() | st.dictionaries(from_wire, st.none() | numbers), from_wire, from_wire),
    st.builds(
        OrderNotice, words, numbers, numbers, numbers, from_wire, st.lists(refs).map(tuple), numbers,
        st.none() | numbers, st.booleans(),
    ),
    st.builds(ReadsNotice, words, numbers, st.lists(st.builds(
        BegunRead, from_wire, refs, numbers, st.integers(0, 10**6).map(lambda ms: ms / 1000)
    )).map(tuple)),
    st.builds(SharesRequest, words),
    st.builds(ListRequest, words, from_wire, st.lists(st.tuples(from_wire, from_wire | st.just(""))).map(tuple)),
    st.builds(ListedPage, seconds, st.lists(st.tuples(from_wire, from_wire)).map(tuple), st.binary()),
    st.builds(DatasetShares, st.lists(
        st.builds(
            DatasetShare, from_wire, from_wire, numbers, numbers, numbers, numbers,
            st.lists(st.tuples(numbers, numbers), max_size=3).map(tuple), numbers,
        ), max_size=SHARES_MAX
    ).map(tuple)),
    st.builds(HeldBlocks, st.lists(st.none() | st.tuples(
        st.binary(min_size=16, max_size=16), numbers, st.integers(0, 2**500)
    )).map(tuple)),
    st.builds(PinsReport, st.lists(st.builds(PinReport, from_wire, from_wire, seconds, st.booleans())).map(tuple)),
    st.builds(PinPage, from_wire, seconds, st.binary(), st.lists(st.tuples(
        refs, st.builds(VersionIdentity, st.sampled_from(('"e\udcff"', "e")), numbers, from_wire | st.just(""))
    )).map(tuple), st.booleans()),
)  # fmt: skip


@pytest.mark.parametrize(("message", "body"), [*GOLDEN.items(), *ANSWERS])
def test_a_message_has_the_form_that_it_had_in_0_2(message: Any, body: bytes) -> None:
    assert decode(type(message), body) == message
    assert json.loads(encode(message)) == json.loads(body)


def test_a_share_of_a_member_of_0_2_states_no_objects() -> None:
    body = b'{"datasets":[{"bucket":"b","name":"n","objects":12,"size":34,"held":5,"near":6}]}'
    assert decode(DatasetShares, body) == DatasetShares((DatasetShare("b", "n", 12, 34, 5, 6),))


@given(st.one_of(MESSAGES))
def test_a_message_comes_as_it_was_sent(message: Any) -> None:
    assert decode(type(message), encode(message)) == message


@given(st.one_of(MESSAGES), st.data())
def test_a_field_of_any_value_raises_no_other_error(message: Any, data: st.DataObject) -> None:
    fields = json.loads(encode(message))
    fields |= data.draw(st.dictionaries(st.sampled_from(sorted(fields)), values))
    with suppress(WireError):
        again = decode(type(message), json.dumps(fields).encode())
        assert decode(type(message), encode(again)) == again


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: json.dumps(text).encode()))
@pytest.mark.parametrize("kind", [Hello, SharesRequest])
def test_no_body_raises_any_other_error(kind: type, body: bytes) -> None:
    with pytest.raises(WireError):
        decode(kind, body)


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, b"\xef\xbb\xbf{}", b"[]"])
def test_a_body_that_a_parser_may_choke_on_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        decode(SharesRequest, body)


def test_an_error_shows_no_part_of_the_message() -> None:
    with pytest.raises(WireError, match=r"^names: not of its form$") as raised:
        decode(Forget, b'{"from":"n","boot":1,"number":2,"names":[["secret", 5]],"doubt":true}')
    assert raised.value.__cause__ is None


ID = "00" * 16
SHARE = json.loads(GOLDEN[DatasetShares((DatasetShare("b", "a\udcff-{}.tar", 12, 34, 5, 6, ((7, 34),), 9),))])[
    "datasets"
][0]
NO_NAME: tuple[Any, ...] = (None, 1, "", "a b", "é", "a\n", "a" * 254)
NO_WORD: tuple[Any, ...] = (None, 1, "a b", "a/b", "\n", "a" * 129)
NO_NUMBER: tuple[Any, ...] = (None, -1, 1.5, 1.0, True, "1", 2**63)
NO_TIME: tuple[Any, ...] = (None, -1, "1", True, float("nan"), float("inf"), 1.1e10, 10**400)
NO_TRUTH: tuple[Any, ...] = (None, 0, 1, "no")
NO_TEXT: tuple[Any, ...] = (None, 1, ["a"], "\ud800")
NO_PAIRS: tuple[Any, ...] = (None, 1, {}, ["ab"], [["a"]], [["a", 1]], [["a", "b", "c"]], [["a", "\ud800"]])
BAD: dict[type, dict[str, tuple[Any, ...]]] = {
    Hello: {
        "name": NO_NAME, "address": (None, "", "h", "h:", "h:x", "h:1\n", "h h:1", ":1", "h:123456"), "zone": NO_WORD,
        "weight": NO_NUMBER, "cluster": NO_WORD,
        "wire": (None, [], [1], [1, 2, 3], [1, "2"], [True, 1], "11", {"1": 1, "2": 2}), "boot": NO_NUMBER,
        "ring": NO_WORD, "forgets": NO_NUMBER, "clock": NO_TIME, "ready": NO_TRUTH, "leaving": NO_TRUTH,
    },
    Forget: {
        "from": NO_NAME, "boot": NO_NUMBER, "number": NO_NUMBER, "doubt": NO_TRUTH, "first": NO_NUMBER[1:],
        "names": (None, "b", {}, {"b": 1}, [1], [None], [""], [[]], [["b"]], [["b", ""]], [["", "k"]],
                  [["b", "k", "x"]], [["b", 1]], [["b", None]], [["\ud800", "k"]], ["\ud800"], ["b", {"b": 1, "k": 2}]),
    },
    Command: {
        "from": NO_NAME, "verb": (None, "", "post", "put\n", "input", ["put"]), "folder": (None, "", "stall"),
        "owner": NO_TEXT, "name": (*NO_TEXT, ""), "list": (*NO_TEXT, "-", "YQ", "Y\nQ==", "é"), "rate": NO_TIME,
        "at": NO_TIME, "copies": NO_NUMBER[1:],
    },
    CommandAnswer: {"told": ([], 1, "a"), "error": NO_TEXT, "code": NO_TEXT},
    OrderNotice: {
        "from": NO_NAME, "boot": NO_NUMBER, "number": NO_NUMBER, "order": NO_NUMBER, "client": NO_TEXT,
        "start": NO_NUMBER, "total": NO_NUMBER[1:], "withdrawn": NO_TRUTH,
        "buckets": (None, [1], ["", "b"], ["b"], "bb"),
        "reads": (None, {}, [[0]], ["ab"], [[2, "k"]], [[-1, "k"]], [[True, "k"]], [["b", "k"]], [[0, ""]], [[0, 5]],
                  [[0, "k", 1]], [[0, "\ud800"]], [[0, "k"]] * (REFS_MAX + 1)),
    },
    ReadsNotice: {
        "from": NO_NAME, "count": NO_NUMBER, "readers": (None, [1, "a"], ["a"], {}), "buckets": (None, ["", "b"], []),
        "reads": (None, [[0, 0, "k", 5]], [[2, 0, "k", 5, 0]], [[0, 2, "k", 5, 0]], [[-1, 0, "k", 5, 0]],
                  [[0, -1, "k", 5, 0]], [[0, 0, "", 5, 0]], [[0, 0, 1, 5, 0]], [[0, 0, "k", -1, 0]],
                  [[0, 0, "k", 5, -1]], [[0, 0, "k", 1.5, 0]], [[0, 0, "k", 5, 10**13]], [[True, 0, "k", 5, 0]],
                  [[0, 0, "\ud800", 5, 0]], [[0, 0, "k", 5, 0]] * (READS_MAX + 1)),
    },
    SharesRequest: {"from": NO_NAME},
    ListRequest: {"from": NO_NAME, "bucket": ("", *NO_TEXT), "query": NO_PAIRS},
    ListedPage: {"age": NO_TIME, "headers": NO_PAIRS, "page": (None, 1, "a", "?")},
    DatasetShares: {"datasets": (
        None, {}, [1], [SHARE] * (SHARES_MAX + 1), *([SHARE | {name: bad}] for name, bads in {
            "bucket": NO_TEXT, "name": NO_TEXT, "objects": NO_NUMBER, "size": NO_NUMBER, "held": NO_NUMBER,
            "near": NO_NUMBER,
        }.items() for bad in bads), [{name: its for name, its in SHARE.items() if name != "near"}],
    )},
    HeldBlocks: {"here": (
        None, {}, ["abc"], [[ID, 1]], [["00", 1, "1"]], [[ID, -1, "1"]], [[ID, True, "1"]], [[ID, 1, 1]], [[ID, 1, ""]],
        [[ID, 1, "-1"]], [[ID, 1, "1\n"]], [[ID, 1, "1" * 65537]], [[ID.replace("0", "g"), 1, "1"]],
    )},
    PinsReport: {"pins": (
        None, {}, ["abcd"], [["", "a", 1]], [["", "a", 1, False, 1]], [["", "a", "1", False]], [["", "a", 1, 0]],
        [[1, "a", 1, False]],
    )},
    PinPage: {
        "client": NO_TEXT, "at": NO_TIME, "list": (*NO_TEXT, "-"), "more": NO_TRUTH,
        "objects": (None, [], *([row, ["b", "k", '"e"', 1]] for row in (
            ["b", "k", '"e"'], ["", "k", '"e"', 1], ["b", "", '"e"', 1], ["b", "k", 'W/"e"', 1], ["b", "k", '"e"', -1],
            ["b", "k", '"e"', True], ["b", "\ud800", '"e"', 1], "bkes",
        ))),
        "modified": ([""], ["", 1], "ab", ["", "", ""]),
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in BAD.items() for field in fields])
def test_a_message_of_another_form_is_refused(kind: type, field: str) -> None:
    message, body = next(each for each in (*GOLDEN.items(), *ANSWERS) if isinstance(each[0], kind))
    fields = json.loads(body)
    assert decode(kind, json.dumps(fields | {"new": [1], "\udcff": 2}).encode()) == message, (
        "fields of a later version are ignored"
    )
    wrongs = [fields | {field: value} for value in BAD[kind][field]]
    if field not in ("total", "told", "modified", "first", "copies"):
        wrongs.append({name: its for name, its in fields.items() if name != field})
    for wrong in wrongs:
        with pytest.raises(WireError):
            decode(kind, json.dumps(wrong).encode())


def test_a_page_of_a_member_before_0_3_has_no_dates() -> None:
    fields = {"client": "c", "at": 1, "list": "", "more": False, "objects": [["b", "k", "e", 1]] * OBJECTS_MAX}
    page = decode(PinPage, json.dumps(fields).encode())
    assert page.objects == ((ObjectRef("b", "k"), VersionIdentity("e", 1, "")),) * OBJECTS_MAX
    fields["objects"] = [["b", "k", "e", 1]] * (OBJECTS_MAX + 1)
    with pytest.raises(WireError):
        decode(PinPage, json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("fields", "numbers"), [("", range(7, 8)), (',"first":null', range(7, 8)), (',"first":3', range(3, 8)),
                            (',"first":9', range(7, 8))],
)  # fmt: skip
def test_a_message_has_one_forget_unless_it_states_the_first_one(fields: str, numbers: range) -> None:
    """Members of 0.2 do not state it."""
    body = f'{{"from":"n","boot":1,"number":7,"names":["b"],"doubt":false{fields}}}'
    assert decode(Forget, body.encode()).numbers == numbers


def test_names_too_many_for_one_forget_become_their_buckets() -> None:
    keys = tuple(ObjectRef(bucket, f"{index:01000}") for bucket in ("b", "a") for index in range(600))
    body = forget_body(Forget("n", 1, 2, (*keys, "c"), in_doubt=True))
    assert len(body) < BODY_BYTES_MAX
    assert decode(Forget, body) == Forget("n", 1, 2, ("a", "b", "c"), in_doubt=True)


def test_a_thousand_keys_of_a_batch_delete_fit() -> None:
    message = Forget("n", 1, 2, tuple(ObjectRef("bucket", f"{index:01000}") for index in range(1000)))
    assert decode(Forget, forget_body(message)) == message


def test_of_reads_too_many_for_one_message_the_newest_are_sent() -> None:
    # An escaped byte takes six bytes of JSON.
    long = tuple(
        BegunRead("10.0.0.1", ObjectRef("b", "\udc80" * 1000 + str(number)), 5, 0.0) for number in range(READS_MAX)
    )
    body = reads_body(ReadsNotice("n", 1, long))
    assert len(body) <= BODY_BYTES_MAX
    sent = decode(ReadsNotice, body).reads
    assert sent == long[-len(sent) :]
    assert len(sent) >= 100


def test_the_same_address_at_two_members_is_two_readers() -> None:
    read = BegunRead("10.0.0.1", OTHER, 5, 0.5)
    assert ReadsNotice("n", 1, (read,)).reader_name(read) != ReadsNotice("m", 1, (read,)).reader_name(read)


ORDER = OrderNotice("n", 1, 2, 3, "10.0.0.1", (OTHER,), 4, 9999)


@pytest.mark.parametrize("key", ["k", "\udc80" * 1000])
def test_a_long_order_goes_in_parts(key: str) -> None:
    refs = tuple(ObjectRef("b", f"{key}{number}") for number in range(2 * REFS_MAX + 1))
    parts = [decode(OrderNotice, encode(part)) for part in parts_of(replace(ORDER, refs=refs))]
    assert [ref for part in parts for ref in part.refs] == list(refs)
    starts = [4]
    for part in parts[:-1]:
        starts.append(starts[-1] + len(part.refs))
    assert [part.start for part in parts] == starts
    assert {(part.order, part.client, part.total) for part in parts} == {(3, "10.0.0.1", 9999)}
    assert all(len(encode(part)) <= BODY_BYTES_MAX for part in parts)
    assert all(0 < len(part.refs) <= REFS_MAX for part in parts)


@pytest.mark.parametrize(
    "refs", [(ObjectRef("b", "\ud800"),), (ObjectRef("\ud800", "k"),), (ObjectRef("b", "k" * BODY_BYTES_MAX),)]
)
def test_a_name_that_no_object_has_is_not_passed_on(refs: tuple[ObjectRef, ...]) -> None:
    with pytest.raises(WireError):
        list(parts_of(replace(ORDER, refs=refs)))


def test_as_many_shares_as_one_answer_may_have_fit() -> None:
    most = 2**63 - 1
    known = ((NUMBERS - 1, 5 * 2**40),) * (REPORTED_MAX // SHARES_MAX)
    share = DatasetShare("b" * 63, "\udc80" * 1024, most, most, most, most, known)
    assert len(encode(DatasetShares((share,) * SHARES_MAX))) < BODY_BYTES_MAX


def test_an_object_is_whole_by_the_blocks_of_one_version() -> None:
    one, other = b"1" * 16, b"2" * 16
    assert is_whole([None, (one, 2, 0b01), (one, 2, 0b10)])
    assert is_whole([(other, 3, 0b011), (one, 2, 0b11), (other, 3, 0)])
    assert is_whole([(one, 0, 0)]), "an empty one has no block"
    assert not is_whole([(one, 2, 0b01), (other, 2, 0b10)])
    assert not is_whole([(one, 2, 0b01), (one, 3, 0b10)])
    assert not is_whole([None, None])
