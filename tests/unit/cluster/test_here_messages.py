"""The blocks that members tell each other of: the same after the wire, refused where they are not of their form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.core.cluster.here_messages import blocks_told, is_whole, parse_blocks
from outrider.core.cluster.wire_forms import WireError

BLOCKS = [(bytes(range(16)), 70, 1 << 69 | 1), None, (b"v" * 16, 0, 0)]
ID = "00" * 16


def test_what_is_told_arrives() -> None:
    assert parse_blocks(json.loads(json.dumps(blocks_told(BLOCKS))), 3) == BLOCKS


@pytest.mark.parametrize(
    "here",
    [None, {}, [], [None, None], ["abc"], [[ID, 1]], [["00", 1, "1"]], [[ID, -1, "1"]], [[ID, True, "1"]],
     [[ID, 1, 1]], [[ID, 1, ""]], [[ID, 1, "-1"]]],
)  # fmt: skip
def test_an_answer_that_is_not_of_its_form(here: Any) -> None:
    with pytest.raises(WireError):
        parse_blocks({"here": here}, 1)


def test_an_object_is_whole_by_the_blocks_of_one_version() -> None:
    one, other = b"1" * 16, b"2" * 16
    assert is_whole([None, (one, 2, 0b01), (one, 2, 0b10)])
    assert is_whole([(other, 3, 0b011), (one, 2, 0b11), (other, 3, 0)])
    assert is_whole([(one, 0, 0)]), "an empty one has no block"
    assert not is_whole([(one, 2, 0b01), (other, 2, 0b10)])
    assert not is_whole([(one, 2, 0b01), (one, 3, 0b10)])
    assert not is_whole([None, None])
