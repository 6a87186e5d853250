"""Finds an eviction policy by its name; the planner is one of them."""

from __future__ import annotations

from outrider.core.ahead.planner import Planner
from outrider.core.cache.policies import POLICIES, EvictionPolicy


def policy_of(name: str, capacity_bytes: int, block_bytes: int) -> EvictionPolicy:
    """The policy for a store of `capacity_bytes`. `epoch` is the planner, which is told of requests too."""
    return Planner(capacity_bytes, block_bytes) if name == "epoch" else POLICIES[name]()
