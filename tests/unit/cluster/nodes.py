"""A membership with its clock and the hellos that it receives, for tests."""

from __future__ import annotations

from dataclasses import replace

from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.membership import Domain, Membership
from outrider.core.cluster.messages import Hello
from outrider.core.model import ObjectRef

GIB = 1 << 30
WALL_S = 1_700_000_000.0
REFS = [ObjectRef("b", f"k{number}") for number in range(60)]


def member(name: str, zone: str = "z1", weight_bytes: int = GIB) -> Member:
    return Member(name, f"{name}:9482", zone, weight_bytes, "c1")


def hello(of: Member | str, boot: int = 100, *, ready: bool = True, leaving: bool = False) -> Hello:
    sender = member(of) if isinstance(of, str) else of
    return Hello(sender, boot, "0" * 12, 0, WALL_S, is_ready=ready, is_leaving=leaving)


def listed(*names: str) -> list[ListedMember]:
    """As a source that knows names gives them."""
    return [ListedMember(f"{name}:9482", name) for name in names]


class Node:
    """The node `a`, whose clock stands still until a test moves it."""

    def __init__(self, me: Member | None = None, domain: Domain = Domain.ZONE, kept: object = None) -> None:
        self.now = 1000.0
        self.me = me or member("a")
        self.membership = Membership(self.me, 100, domain, self.now, kept)

    def lists(self, *entries: ListedMember | str) -> None:
        given = [ListedMember(f"{entry}:9482", entry) if isinstance(entry, str) else entry for entry in entries]
        self.membership.listed(given, self.now)

    def receives(self, *hellos: Hello | str, at: str = "") -> None:
        for each in hellos:
            said = hello(each) if isinstance(each, str) else each
            self.membership.answered(at or said.member.address, said, self.now, WALL_S)

    def fails(self, *names: str) -> None:
        for name in names:
            self.membership.unanswered(f"{name}:9482", self.now)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.membership.passed(self.now)

    def knows(self, names: str) -> Node:
        """All of the names are listed, and all but `a` have answered."""
        self.lists(*names)
        self.receives(*[name for name in names if name != self.me.name])
        self.membership.changes()
        return self

    @property
    def ring(self) -> str:
        return "".join(each.name for each in self.membership.view.ring.members)

    @property
    def acting(self) -> str:
        return "".join(each.name for each in self.membership.view.acting.members)

    @property
    def alive(self) -> str:
        return "".join(sorted(self.membership.view.alive))

    @property
    def left_out(self) -> list[tuple[str, str]]:
        return [(each.name, each.why.value) for each in self.membership.view.left_out]

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(each.event, each.name) for each in self.membership.changes() if each.event != "ring"]


def under(of: Member, address: str) -> Member:
    return replace(of, address=address)


def silent(node: Node) -> list[ListedMember]:
    return list(node.membership.view.silent)
