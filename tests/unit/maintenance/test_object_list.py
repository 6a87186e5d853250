"""Object lists are parsed as written, or refused with the number of the line."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.errors import InvalidArgument
from outrider.core.maintenance.object_list import PREFIXES_MAX, ObjectList, parse_list
from outrider.core.model import ObjectRef
from outrider_sdk import expand

KEYS = st.text(
    st.characters(exclude_categories=("C", "Zl", "Zp", "Zs"), exclude_characters="{}"), min_size=1, max_size=30
)


def urls_of(parsed: ObjectList) -> list[str]:
    return [str(ref) for ref in parsed.refs]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["b-1", "other.bucket"]), KEYS), min_size=1))
def test_a_list_is_parsed_in_its_order_and_each_name_once(names: list[tuple[str, str]]) -> None:
    parsed = parse_list("\n".join(f"  s3://{bucket}/{key}\r" for bucket, key in names).encode())
    refs = [ObjectRef(*name) for name in dict.fromkeys(names)]
    assert parsed.refs == tuple(ref for ref in refs if not ref.key.endswith("/"))
    assert parsed.prefixes == tuple(ref for ref in refs if ref.key.endswith("/"))


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 4)).map(
                lambda bounds: f"{{{bounds[0]:0{bounds[2]}}..{bounds[1]:0{bounds[2]}}}}"
            ),
            st.lists(st.sampled_from(["a", "", "07"]), min_size=2, max_size=3).map(lambda of: f"{{{','.join(of)}}}"),
            st.sampled_from(["x", "-", ".tar"]),
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_a_template_stands_for_what_the_sdk_makes_of_it(parts: list[str]) -> None:
    template = "s3://bkt/k" + "".join(parts)
    assert urls_of(parse_list(template.encode(), objects_max=10**7)) == list(dict.fromkeys(expand(template)))


def test_a_bucket_and_a_prefix_stand_for_all_keys_under_them() -> None:
    parsed = parse_list("﻿s3://one\ns3://two/\n\n  # no\ns3://three/a b/{x,y}/\n".encode())
    assert parsed.prefixes == (
        ObjectRef("one", ""), ObjectRef("two", ""), ObjectRef("three", "a b/x/"), ObjectRef("three", "a b/y/"),
    )  # fmt: skip
    assert parsed.refs == ()


BAD_LISTS = {
    b"": "names nothing",
    b"# no more": "names nothing",
    b"s3://b-1/k\n/b/k": "Line 2 is not",
    b"http://169.254.169.254/latest/": "Line 1 is not",
    b"s3://127.0.0.1:80/k": "Line 1 is not",
    b"s3://_outrider/status.json": "Line 1 is not",
    b"s3://../k": "Line 1 is not",
    b"s3://bkt/{1..2": "a brace without its other",
    b"s3://bkt/{x}": "neither a range",
    b"s3://bkt/{0..9999}{0..9999}": "more than",
    b"s3://bkt/\xff": "not UTF-8",
    b"s3://bkt/" + b"k" * 1025: "Line 1 is not",
}


def test_a_malformed_list_is_refused_with_the_reason() -> None:
    for body, why in BAD_LISTS.items():
        with pytest.raises(InvalidArgument, match=why):
            parse_list(body)


def test_the_expansion_of_templates_is_bounded() -> None:
    assert len(parse_list(b"s3://bkt/{000..999}", objects_max=1000).refs) == 1000
    for body in (b"s3://bkt/{000..999}\ns3://bkt/k", b"s3://bkt/{0..999999999999999999}", b"s3://bkt/" + b"{a,b}" * 60):
        with pytest.raises(InvalidArgument, match="more than 1000 objects"):
            parse_list(body, objects_max=1000)
    with pytest.raises(InvalidArgument, match="prefixes"):
        parse_list(b"\n".join(b"s3://bkt/%d/" % number for number in range(PREFIXES_MAX + 1)))


def test_templates_of_any_number_of_braces_cost_no_more_than_their_length() -> None:
    """The number of names has a digit for each brace, and each multiplication of it would cost as many steps. Braces of
    one name each, beside them, make no number that grows."""

    def cost(brace: bytes) -> float:
        body, began = b"s3://bkt/" + brace * 160_000, time.process_time()
        with pytest.raises(InvalidArgument):
            parse_list(body)
        return time.process_time() - began

    ten_each, one_each = zip(*((cost(b"{0..9}"), cost(b"{0..0}")) for _ in range(3)), strict=True)
    assert min(ten_each) < 1.5 * min(one_each)
