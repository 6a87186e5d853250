"""How much memory an object holds, so that a test of a bound needs no look into the object."""

from __future__ import annotations

import gc
import sys
from types import FunctionType, ModuleType


def held_bytes(thing: object) -> int:
    """The bytes of all that `thing` leads to, save for classes, functions and modules."""
    found: dict[int, object] = {}
    next_ones = [thing]
    while next_ones:
        each = next_ones.pop()
        if id(each) not in found and not isinstance(each, type | FunctionType | ModuleType):
            found[id(each)] = each
            next_ones += gc.get_referents(each)
    return sum(map(sys.getsizeof, found.values()))
