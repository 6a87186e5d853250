"""The members at one moment: what `membership` concludes, and what reads and reports ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.ownership import Ring
from outrider.core.model import ObjectRef


class Why(StrEnum):
    """The reasons for which a listed member is left out."""

    CLUSTER_ID = "cluster id"
    WIRE = "wire version"
    NAME = "name"
    """Another name answers at the address than the list says: the address was taken over by another pod."""
    DUPLICATE = "duplicate name"
    """Another process answers to the name of this node, or of a member that began later."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`name`: as the process at the address says; `detail`: the value that does not fit."""

    address: str
    name: str
    why: Why
    detail: str
    boot: int = 0
    """The boot of the process; see `Hello`."""


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member beside this node. `away_since`: monotonic seconds; None: it is listed, answers, and is ready.

    `is_alive`: it answers, is ready, and may be asked, even while it leaves. `boot`: of its process; 0: not known yet.
    `ring`: the digest of its ring. `skew_s`: its clock minus this node's, a round trip inaccurate; it is reported, and
    nothing else.
    """

    member: Member
    is_listed: bool
    is_alive: bool
    is_leaving: bool
    in_ring: bool
    away_since: float | None
    boot: int
    ring: str
    skew_s: float


@dataclass(frozen=True, slots=True)
class Change:
    """A fact for the log. `event`: joined, left, away, back, leaving, moved (its address changed), left out, name used
    twice, ring, list doubted, list believed."""

    event: str
    name: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The members at one moment. Immutable, so that a read sees one state, whatever happens meanwhile.

    `ring`: places blocks, and is slow. `acting`: the members of the ring that may begin a fill, in the same order for
    each block, hence its first one is the acting owner: the owner, or the successor that acts for it; fast. This node
    is in both, except that it does not act while it leaves and others are there. `alive`: the others that may be
    requested, of all zones.
    """

    me: Member
    ring: Ring
    acting: Ring
    alive: Mapping[str, Member]
    states: Sequence[MemberState]
    left_out: Sequence[LeftOut]
    is_listed: bool
    """Whether the list holds this node."""
    previous: Sequence[Ring] = ()
    silent: Sequence[ListedMember] = ()
    """Entries of the list at whose addresses no member ever answered."""
    answering: Sequence[Member] = ()
    """The others that are notified of writes: those in `alive`, and those that still read their index. These serve
    clients, too."""

    def is_member(self, name: str) -> bool:
        """Whether another process may be the member of this name: a list of now has it, or one of the last minutes
        had it. It is not asked whether it answers, since the list may know of it before it was greeted."""
        if name == self.me.name:
            return False
        return any(state.member.name == name for state in self.states) or any(
            entry.name == name for entry in self.silent
        )

    @property
    def names_used_twice(self) -> Mapping[str, Sequence[str]]:
        """The names to which several processes answer, with their addresses. Only the one that began last is asked."""
        at: dict[str, set[str]] = {}
        for left in self.left_out:
            if left.why is Why.DUPLICATE:
                at.setdefault(left.name, {left.detail}).add(left.address)
        return {name: sorted(addresses) for name, addresses in at.items()}

    def acting_owner(self, ref: ObjectRef, index: int) -> Member:
        """The member that a missing block is asked of, this node included."""
        return self.acting.owner(ref, index)

    def is_mine(self, ref: ObjectRef, index: int) -> bool:
        """Whether this node owns the block, or acts for an owner that is away. Other blocks are near ones."""
        name = self.me.name
        return self.ring.owner(ref, index).name == name or self.acting.owner(ref, index).name == name

    def keeps(self, ref: ObjectRef, index: int, copies: int) -> bool:
        """Whether this node is among the first `copies` members for the block, or acts for one of them that is
        unreachable; 0: each member is."""
        if not copies:
            return True
        first = (*self.ring.owners(ref, index)[:copies], *self.acting.owners(ref, index)[:copies])
        return any(member.name == self.me.name for member in first)

    def turn(self, ref: ObjectRef, index: int) -> int:
        """The turn in which this node requests copies of the block: how far behind this node its acting owner stands in
        the ring. So members that fetch the same blocks at the same time request them from different ones."""
        return self.ring.distance(self.me.name, self.acting_owner(ref, index).name)

    def previous_owner(self, ref: ObjectRef, index: int) -> Member | None:
        """The member that took the block before the last change that moved it, within an hour, if it is alive: an owner
        that leaves, one of an earlier ring, or the successor that acted for this node while it was unreachable. None:
        nobody else did. It is to be requested for the block only if it has it."""
        acting = self.acting_owner(ref, index).name
        for ring in self.previous:
            name = ring.owner(ref, index).name
            if name != acting:
                member = self.alive.get(name)
                if member is not None:
                    return member
        return None
