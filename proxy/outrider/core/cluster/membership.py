"""The members of the cluster, as this node sees them: a reducer of lists, hellos and failed hellos."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from outrider.core.cluster.believed_list import BelievedList, members_from_json, members_to_json
from outrider.core.cluster.member import ListedMember, Member
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.ownership import Ring
from outrider.core.cluster.view import Change, LeftOut, MemberState, View, Why

AWAY_S = 120.0
"""A member that is away stays in the ring for so long, so that a restart moves nothing."""
PREVIOUS_S = 3600.0
"""For so long after a change, the previous owner of a block is asked before the bucket."""
# A ring that comes and goes is remembered once; a lookup goes through all of them.
_PREVIOUS_MAX = 8
# A process that has this node's name counts as there for so long after it greeted: it may be listed elsewhere.
_NAMESAKE_S = 30.0
# A member that does not answer its first hello does not hold up the start for longer.
_SETTLE_S = 10.0


class Domain(StrEnum):
    """The members that make a ring: those of this node's own zone, or all."""

    ZONE = "zone"
    CLUSTER = "cluster"


@dataclass(slots=True)
class _Known:
    """A member beside this node. Its record outlives its listing by `AWAY_S`."""

    member: Member
    boot: int = 0
    ring: str = ""
    skew_s: float = 0.0
    answers: bool = False
    is_ready: bool = False
    is_leaving: bool = False
    is_listed: bool = True
    # It was ready once, here or in the list that was kept: a restart does not take it out of the ring.
    in_ring: bool = False
    away_since: float | None = None

    @property
    def is_alive(self) -> bool:
        return self.answers and self.is_ready

    def state(self, in_ring: bool) -> MemberState:
        return MemberState(
            self.member, self.is_listed, self.is_alive, self.is_leaving, in_ring, self.away_since, self.boot, self.ring,
            self.skew_s,
        )  # fmt: skip


@dataclass(slots=True)
class _Me:
    member: Member
    boot: int
    began: float
    is_leaving: bool = False
    addresses: set[str] = field(default_factory=set)


class Membership:
    """Belongs to the event loop. Every method takes `now` (monotonic seconds) and may change `view`.

    - A list says who is a member, a hello whether it is there. Only a listed member is greeted, and only one that
      answered and is ready enters the ring.
    - A member that stops answering is no longer alive at once; it leaves the ring after `AWAY_S`. So does one that is
      no longer listed.
    - A member that leaves stays in the ring and alive, but takes no new blocks.
    - This node is always a member. It is to send others `view.me`, which has the zone and the weight that the list gave
      it.

    Nothing compares the clocks of two nodes. `boot` numbers are compared only under the same name.
    """

    def __init__(self, me: Member, boot: int, domain: Domain, now: float, kept: object = None) -> None:
        """`boot`: of this process. `kept`: what the property `kept` was in an earlier process, as it came out of JSON;
        anything else is ignored."""
        self._me = _Me(me, boot, now)
        self._domain = domain
        self._known: dict[str, _Known] = {}
        self._left_out: dict[str, LeftOut] = {}
        # Until when a process that has this node's name, and greeted it, is left out, by its address.
        self._namesakes: dict[str, float] = {}
        # Addresses that answered or failed at least once, until the node is settled.
        self._tried: set[str] = set()
        # Rings that took blocks before, the latest first, each with the time until which it is remembered.
        self._previous: list[tuple[Ring, float]] = []
        self._changes: list[Change] = []
        for member in members_from_json(kept):
            if member.name != me.name and member.cluster_id == me.cluster_id and member.name not in self._known:
                self._known[member.name] = _Known(member, in_ring=True, away_since=now)
        restored = [ListedMember(each.member.address, each.member.name) for each in self._known.values()]
        self._list = BelievedList(restored)
        self._is_settled = False
        alone = Ring([me])
        self.view = View(me, alone, alone, {}, (), (), is_listed=False)
        self.view = self._look(now)

    # -- received ---------------------------------------------------------------------------------------------------

    def listed(self, entries: Iterable[ListedMember], now: float) -> None:
        """The source's list of now."""
        was_doubted = self._list.is_doubted
        self._list.listed(entries, now)
        if self._list.is_doubted and not was_doubted:
            self._changes.append(Change("list doubted"))
        self._apply_list(now)

    def answered(self, address: str, hello: Hello, now: float, wall_s: float) -> None:
        """The process at `address` answered a hello. `wall_s`: the time of this node, in seconds since 1970."""
        self._tried.add(address)
        member = hello.member
        if member.name == self._me.member.name and hello.boot == self._me.boot:
            self._me.addresses.add(address)
            self._left_out.pop(address, None)
            self._renew(now)
            return
        misfit = self._misfit(address, hello)
        # Whichever member answered here before, this is the one that does now.
        self._silence(address)
        if misfit is None:
            self._left_out.pop(address, None)
            self._learn(address, hello, now, wall_s)
        else:
            self._leave_out(misfit)
        self._renew(now)

    def met_namesake(self, hello: Hello, now: float) -> None:
        """Another process of this node's name greeted it. It may be the one way to learn that the name is taken: other
        members refuse this node once they know of a process of its name that began later."""
        address = hello.member.address
        is_known = any(left.boot == hello.boot for at, left in self._left_out.items() if at != address)
        # At this node's own address it is the process before, which has ended.
        if hello.boot == self._me.boot or is_known or address in self._my_addresses:
            return
        self._namesakes[address] = now + _NAMESAKE_S
        self._leave_out(LeftOut(address, hello.member.name, Why.DUPLICATE, self._me.member.address, hello.boot))
        self._renew(now)

    def unanswered(self, address: str, now: float) -> None:
        """A hello to `address` was not answered."""
        self._tried.add(address)
        self._silence(address)
        self._renew(now)

    def leaves(self, name: str, boot: int, now: float) -> None:
        """A member said that it leaves. Ignored if it was another process of that name."""
        known = self._known.get(name)
        if known is not None and known.boot == boot and not known.is_leaving:
            known.is_leaving = True
            self._changes.append(Change("leaving", name))
            self._renew(now)

    def news_from(self, hello: Hello) -> str | None:
        """The address at which a member that greeted this node is to be greeted at once, since it has not answered as
        it is now; None: it need not be. A greeting is no answer: it does not show that the member can be reached. The
        address is that of the list: whoever has the key might state another one, and be asked for blocks there."""
        entry = self._list.entry_of(hello.member.address, hello.member.name)
        known = self._known.get(hello.member.name)
        if entry is None or (
            known is not None
            and (known.boot, known.is_alive, known.is_leaving) == (hello.boot, hello.is_ready, hello.is_leaving)
        ):
            return None
        return entry.address

    def counts(self, name: str, boot: int) -> bool:
        """Whether the numbers of this process are those of a member. One that is left out does not notify this node
        of its writes, or not of all: each of its numbers would be a gap. A process that is not known yet counts, so
        that no number of a member that has just joined is missed."""
        return name != self._me.member.name and all(
            (left.name, left.boot) != (name, boot) for left in self._left_out.values()
        )

    def name_at(self, address: str) -> str:
        """The member that answers at the address; empty: none does."""
        return next(
            (name for name, known in self._known.items() if known.answers and known.member.address == address), ""
        )

    def i_leave(self, now: float) -> None:
        """This node is about to stop: it takes no new blocks."""
        self._me.is_leaving = True
        self._renew(now)

    def passed(self, now: float) -> None:
        """Time passed. To be called every second or so."""
        was_doubted = self._list.is_doubted
        self._list.passed(now)
        if was_doubted and not self._list.is_doubted:
            self._changes.append(Change("list believed"))
        self._apply_list(now)

    # -- what follows -----------------------------------------------------------------------------------------------

    @property
    def to_greet(self) -> Sequence[str]:
        """The addresses to which a hello is due at regular intervals: the listed ones, and the last ones of members
        that are still in the ring."""
        addresses = {entry.address: None for entry in self._list.entries}
        addresses.update({known.member.address: None for known in self._known.values()})
        mine = self._my_addresses
        return [address for address in addresses if address not in mine]

    @property
    def is_settled(self) -> bool:
        """The first list came, and each of its members answered or did not; or ten seconds passed. Before that the ring
        may lack members, and this node would take their blocks."""
        return self._is_settled

    @property
    def kept(self) -> dict[str, object]:
        """The other members that have blocks by the ring of this or another zone, to be kept as JSON in the cache
        directory."""
        kept = [known.member for known in self._known.values() if known.in_ring]
        return members_to_json(sorted(kept, key=lambda member: member.name))

    def changes(self) -> Sequence[Change]:
        """The changes since the last call."""
        changes, self._changes = self._changes, []
        return changes

    # -- the rules --------------------------------------------------------------------------------------------------

    def _misfit(self, address: str, hello: Hello) -> LeftOut | None:
        member, mine = hello.member, self._me.member
        if member.cluster_id != mine.cluster_id:
            return LeftOut(address, member.name, Why.CLUSTER_ID, member.cluster_id, hello.boot)
        if member.wire[1] < mine.wire[0] or mine.wire[1] < member.wire[0]:
            return LeftOut(address, member.name, Why.WIRE, f"{member.wire[0]} to {member.wire[1]}", hello.boot)
        entry = self._list.at(address)
        if entry is not None and entry.name not in ("", member.name):
            return LeftOut(address, member.name, Why.NAME, entry.name, hello.boot)
        known = self._known.get(member.name)
        if member.name == mine.name:
            return LeftOut(address, member.name, Why.DUPLICATE, mine.address, hello.boot)
        if known is not None and known.answers and known.member.address != address and hello.boot < known.boot:
            return LeftOut(address, member.name, Why.DUPLICATE, known.member.address, hello.boot)
        return None

    def _leave_out(self, misfit: LeftOut) -> None:
        if self._left_out.get(misfit.address) == misfit:
            return
        self._left_out[misfit.address] = misfit
        if misfit.why is Why.DUPLICATE:
            detail = f"{misfit.address} and {misfit.detail}: give each its own --peer-name"
            self._changes.append(Change("name used twice", misfit.name, detail))
        else:
            self._changes.append(Change("left out", misfit.name, f"{misfit.why}: {misfit.detail}"))

    def _learn(self, address: str, hello: Hello, now: float, wall_s: float) -> None:
        """A member that fits answered."""
        name = hello.member.name
        entry = self._list.entry_of(address, name)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Known(hello.member, away_since=now)
        elif known.member.address != address:
            if known.answers and known.boot == hello.boot:
                return  # one process at two addresses: the first one stays
            self._changes.append(Change("moved", name, address))
        # An answer that was written before the member began to leave may come after it said so.
        is_leaving = hello.is_leaving or (known.is_leaving and known.boot == hello.boot)
        if is_leaving and not known.is_leaving:
            self._changes.append(Change("leaving", name))
        known.member = replace(hello.member, address=address).completed(entry)
        known.boot, known.ring, known.skew_s = hello.boot, hello.ring, hello.clock_s - wall_s
        known.answers, known.is_ready, known.is_leaving = True, hello.is_ready, is_leaving

    def _silence(self, address: str) -> None:
        """No member answers at the address."""
        for known in self._known.values():
            if known.member.address == address:
                known.answers = False

    def _apply_list(self, now: float) -> None:
        self._namesakes = {at: until for at, until in self._namesakes.items() if until > now}
        self._left_out = {
            at: left for at, left in self._left_out.items() if at in self._namesakes or self._list.at(at) is not None
        }
        self._renew(now)

    def _renew(self, now: float) -> None:
        for name, known in list(self._known.items()):
            entry = self._entry_of(name, known)
            known.is_listed = entry is not None
            if entry is not None and not known.answers and entry.name == name and entry.address != known.member.address:
                # The list knows before the hello that the member came back elsewhere.
                known.member = replace(known.member, address=entry.address)
            self._age(name, known, now)
        was_settled = self._is_settled
        self._settle(now)
        view = self._look(now, was_settled=was_settled)
        if view.ring != self.view.ring:
            self._changes.append(Change("ring", detail=view.ring.digest))
        self.view = view

    def _entry_of(self, name: str, known: _Known) -> ListedMember | None:
        entry = self._list.entry_of(known.member.address, name)
        if entry is None or entry.name or known.answers:
            return entry
        # An entry without a name is that of the member that answers at the address.
        others = (each for each in self._known.values() if each.member.address == entry.address)
        return None if any(each.answers for each in others) else entry

    def _age(self, name: str, known: _Known, now: float) -> None:
        if known.is_alive and known.is_listed:
            if known.away_since is not None:
                self._changes.append(Change("back" if known.in_ring else "joined", name, known.member.address))
            known.away_since, known.in_ring = None, True
        elif known.away_since is None:
            known.away_since = now
            self._changes.append(Change("away", name))
        elif now - known.away_since > AWAY_S:
            if known.in_ring:
                self._changes.append(Change("left", name))
            known.in_ring = False
            if not known.is_listed:
                del self._known[name]

    def _settle(self, now: float) -> None:
        if not self._is_settled:
            waits_for = {*self.to_greet} - self._tried
            self._is_settled = now - self._me.began >= _SETTLE_S or (self._list.has_come and not waits_for)
        if self._is_settled:
            self._tried.clear()

    def _look(self, now: float, *, was_settled: bool = False) -> View:
        """`was_settled`: the last view is worth being remembered."""
        entry = self._own_entry()
        me = self._me.member.completed(entry)
        mine = [known for known in self._known.values() if self._is_of_ring(known, me)]
        ring = _ring([me, *(known.member for known in mine)], self.view.ring)
        taking = [known.member for known in mine if known.is_alive and not known.is_leaving]
        acting = _ring(taking if self._me.is_leaving and taking else [me, *taking], self.view.acting)
        if was_settled and acting != self.view.acting:
            self._previous.insert(0, (self.view.acting, now + PREVIOUS_S))
        return View(
            me=me,
            ring=ring,
            acting=acting,
            alive={name: known.member for name, known in self._known.items() if known.is_alive},
            states=tuple(known.state(self._is_of_ring(known, me)) for _, known in sorted(self._known.items())),
            left_out=tuple(left_out for _, left_out in sorted(self._left_out.items())),
            is_listed=entry is not None,
            previous=self._previous_rings(acting, me, now),
            silent=self._silent(),
            answering=tuple(known.member for known in self._known.values() if known.answers),
        )

    def _silent(self) -> Sequence[ListedMember]:
        """The listed addresses of which nothing is known but that they are listed."""
        answered = {known.member.address for known in self._known.values()} | self._my_addresses | self._left_out.keys()
        others = [entry for entry in self._list.entries if entry.address not in answered]
        # A name that is known has answered elsewhere.
        return tuple(entry for entry in others if entry.name not in self._known and entry.name != self._me.member.name)

    @property
    def _my_addresses(self) -> set[str]:
        return self._me.addresses | {self._me.member.address}

    def _own_entry(self) -> ListedMember | None:
        me = self._me.member
        for address in (me.address, *sorted(self._me.addresses)):
            entry = self._list.entry_of(address, me.name)
            if entry is not None:
                return entry
        return None

    def _is_of_ring(self, known: _Known, me: Member) -> bool:
        return known.in_ring and (self._domain is Domain.CLUSTER or known.member.zone == me.zone)

    def _previous_rings(self, acting: Ring, me: Member, now: float) -> Sequence[Ring]:
        """Those that took blocks before `acting`, the latest first. The last one is the ring without this node, which
        took its blocks until it began."""
        known = [(ring, until) for ring, until in self._previous if until > now and ring != acting]
        self._previous = known[:_PREVIOUS_MAX]
        rings = [ring for ring, _ in self._previous]
        others = [member for member in acting.members if member.name != me.name]
        if others and now - self._me.began < PREVIOUS_S:
            rings.append(_ring(others, self.view.previous[-1] if self.view.previous else acting))
        return tuple(rings)


def _ring(members: Sequence[Member], last: Ring) -> Ring:
    """The last ring, with its memo, if the members are the same ones at the same addresses."""
    ordered = tuple(sorted(members, key=lambda member: member.name))
    return last if ordered == last.members else Ring(ordered)
