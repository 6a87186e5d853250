"""Each eviction policy against a plain list of the blocks in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.policies import POLICIES
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

KEYS = [BlockKey(bytes(16), index) for index in range(6)]
VERSION = ObjectVersion(ObjectRef("bucket", "key"), '"etag"', 6)
acts = st.lists(st.tuples(st.sampled_from(("added", "read", "removed")), st.sampled_from(KEYS)), max_size=60)


@pytest.mark.parametrize("name", ["lru", "fifo", "none"])
@given(script=acts)
def test_the_order_of_victims_is_the_list_that_the_name_promises(name: str, script: list[tuple[str, BlockKey]]) -> None:
    policy = POLICIES[name]()
    order: list[BlockKey] = []
    for act, key in script:
        if act == "added":
            if key in order:
                continue  # the store adds a block once
            order.append(key)
            policy.added(key, VERSION)
        elif act == "read":
            policy.read(key)
            if name == "lru" and key in order:
                order.remove(key)
                order.append(key)
        else:
            policy.removed(key)
            if key in order:
                order.remove(key)
        assert list(policy.victims()) == ([] if name == "none" else order)
