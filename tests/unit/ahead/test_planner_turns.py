"""Tenants take turns in what is prefetched, by their shares of the line."""

from __future__ import annotations

import pytest

from outrider.core.ahead.planner import Planner
from outrider.core.cache.tenants import Tenants, TenantShare
from outrider.core.model import ObjectRef

BLOCK = 1024 * 1024


def folders_of_wants(shares: dict[str, TenantShare] | None, count: int = 8) -> str:
    """The first letters of the folders of what is wanted, block by block. `greedy` runs three jobs, `modest` one."""
    planner = Planner(1000 * BLOCK, BLOCK)
    tenants = Tenants()
    for name in ("g/a", "g/b", "g/c", "m/a"):
        refs = [ObjectRef("train", f"{name}/{number:03d}") for number in range(50)]
        tenants.read(name[0], refs[0])
        planner.announced(name, refs, 0.0, start=0, total=len(refs))
        for ref in refs:
            planner.found(ref, BLOCK)
    if shares is not None:
        planner.share_line(tenants)
        tenants.renew(shares)
    wants = (planner.wants(1.0, 1000 * BLOCK, blocks) for blocks in range(1, count + 1))
    return "".join(want.ref.key[0] for some in wants for want in some)


@pytest.mark.parametrize(
    ("greedy", "modest", "order"),
    [(0.5, 0.5, "gmgmgmgm"), (0.25, 0.75, "gmmmgmmm"), (None, None, "gggmgggm")],
)
def test_the_tenant_whose_turn_it_is_comes_before_what_is_more_urgent(
    greedy: float | None, modest: float | None, order: str
) -> None:  # fmt: skip
    assert folders_of_wants({"g": TenantShare(line=greedy), "m": TenantShare(line=modest)}) == order


def test_clients_that_are_not_distinguished_come_by_urgency() -> None:
    assert folders_of_wants(None) == "gggmgggm"
