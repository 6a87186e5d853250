"""The owners of an object's blocks, as `outrider cluster who` shows them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from outrider.core.block_layout import BlockLayout
from outrider.core.errors import NoSuchKey
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion
from outrider.engine.status.block_owners import owners_of
from tests.unit.cluster.nodes import Node

REF = ObjectRef("b", "k")
LAYOUT = BlockLayout("http://bucket", 100)


class Here:
    """The version cache, the version lookup and the store of a node that knows `known`, and can ask for `asked`."""

    def __init__(self, node: Node, known: int | None, asked: int | None = None) -> None:
        self._known, self._asked = known, asked
        self.questions = 0
        self.here: set[int] = set()
        self.owners = partial(owners_of, LAYOUT, lambda: node.membership.view, self.likely, self.ask, self.has)

    def likely(self, ref: ObjectRef) -> ObjectVersion | None:
        return None if self._known is None else ObjectVersion(ref, '"e"', self._known)

    async def ask(self, ref: ObjectRef, first_byte: int | None) -> ObjectVersion:
        self.questions += 1
        if self._asked is None:
            raise NoSuchKey
        return ObjectVersion(ref, '"e"', self._asked)

    def has(self, key: BlockKey) -> bool:
        return key.index in self.here

    def document(self) -> dict[str, Any]:
        return asyncio.run(self.owners(REF))


def test_each_block_has_its_owners_in_order_and_the_one_that_is_asked_now() -> None:
    node = Node().knows("abcd")
    here = Here(node, 950)
    here.here = {2}
    node.fails("c")
    document, view = here.document(), node.membership.view
    assert (document["object"], document["size"], document["blocks"], here.questions) == ("s3://b/k", 950, 10, 0)
    assert [block["index"] for block in document["owners"]] == list(range(10))
    for block in document["owners"]:
        order = [member.name for member in view.ring.owners(REF, block["index"])]
        assert block["owners"] == order[:3]
        assert block["asked"] == view.acting_owner(REF, block["index"]).name
        assert block["here"] is (block["index"] == 2)
    assert document["authority"] == document["owners"][0]["owners"][0]
    stood_in = [block for block in document["owners"] if block["owners"][0] == "c"]
    assert stood_in, "one that is away stays in the ring"
    assert all(block["asked"] == block["owners"][1] for block in stood_in)


def test_shares_are_of_all_blocks_and_the_last_one_is_short() -> None:
    node = Node().knows("abc")
    document = Here(node, 100 * 400 + 1).document()
    shares = document["shares"].values()
    assert (document["blocks"], sum(share["blocks"] for share in shares)) == (401, 401)
    assert sum(share["bytes"] for share in shares) == document["size"]
    assert len(document["owners"]) == 256


def test_of_a_huge_object_the_first_blocks_are_summed_up() -> None:
    document = Here(Node().knows("ab"), 100 * 20_000).document()
    assert (document["blocks"], document["shares_of_blocks"]) == (20_000, 16_384)
    assert sum(share["blocks"] for share in document["shares"].values()) == 16_384


def test_the_bucket_is_asked_for_an_object_that_is_not_known() -> None:
    here = Here(Node().knows("ab"), None, 250)
    assert (here.document()["blocks"], here.questions) == (3, 1)
    with pytest.raises(NoSuchKey):
        Here(Node().knows("ab"), None).document()


def test_an_empty_object_has_an_authority() -> None:
    document = Here(Node().knows("abc"), 0).document()
    assert document["blocks"] == 0
    assert document["authority"] in "abc"
    assert document["owners"] == []
    assert {share["bytes"] for share in document["shares"].values()} == {0}
