"""Pins that the members of a cluster keep together: each member keeps the blocks that it owns.

All members know all pins. The member that a client asked reserves its own part, or refuses the pin. Then it notifies
the others, which keep theirs; a part that does not fit makes the pin `failed`. Members ask each other for their pins at
a start and from time to time, so that one that was unreachable learns of those that were given or ended meanwhile. The
later one of two accounts of a pin holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from outrider.core.cluster.messages import OBJECTS_MAX, Command, PinPage, PinReport, PinsReport
from outrider.core.cluster.wire_forms import WireError, fields_of, of_fields
from outrider.core.errors import NoRoom, S3Error, ServiceUnavailable
from outrider.core.maintenance.object_list import parse_list
from outrider.core.maintenance.progress_sum import PART_NAMES_MAX, UNANSWERED, failed_part, warmup_sum
from outrider.engine.cluster.commands import MemberCommands
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.warmup import Warmup
from outrider.engine.tasks.runtime import Runtime

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""The owner of a pin, and its name."""

# A member is asked for its pins so often; a process that was not there before, at once.
_LEARN_AGAIN_S = 60.0
# Ends of pins that are remembered: a member that was unreachable must not bring its pin back.
_ENDED_MAX = 1000
# The later one of two accounts of a pin has a later time, by so much at least.
_LATER_S = 0.001


class PinsTogether:
    """Called on the engine's thread."""

    def __init__(self, others: MemberCommands, pinning: Pinning, runtime: Runtime) -> None:
        self._others = others
        self._pinning = pinning
        self._runtime = runtime
        # When each process was last asked for its pins, by member and boot.
        self._requested: dict[tuple[str, int], float] = {}

    # -- for clients of this member -----------------------------------------------------------------------------------

    async def pin(self, pin: Warmup) -> None:
        """As `Pinning.pin`, for the part of this member; the others learn of the pin. Raises S3Error."""
        pin.at = max(pin.at, self._known_at(pin.owner, pin.name) + _LATER_S)
        try:
            await self._pinning.pin(pin)
        except NoRoom as error:
            raise NoRoom(f"The member {self._others.view.me.name}: {error.text}") from error
        # One that does not get this asks for all pins by and by.
        await self._others.ask(Command("", "put", "pin", pin.owner, pin.name, pin.body, at=pin.at))

    async def unpin(self, owner: str, name: str, now: float) -> None:
        """The pin ends at all members; one that is unreachable learns of it later. `now`: seconds since 1970."""
        pin = self._pinning.book.get(owner, name)
        if pin is None:
            return
        at = max(now, pin.at + _LATER_S)
        await self._end(owner, name, at)
        await self._others.ask(Command("", "delete", "pin", owner, name, at=at))

    async def report(self, pin: Warmup) -> dict[str, Any]:
        """The progress of all members together."""
        answers = await self._others.ask(Command("", "get", "pin", pin.owner, pin.name))
        view, parts = self._others.view, [_named(self._others.view.me.name, self._pinning.report(pin))]
        for member, answer in answers:
            if answer is not None and answer.error:
                parts.append(failed_part(member, answer.error))
            elif answer is None or answer.report is None or answer.report.get("at") not in (None, pin.at):
                # It does not know this pin yet.
                parts.append(UNANSWERED)
            else:
                parts.append(_named(member, answer.report))
        # A part that nobody reports is not done.
        others = (each.name for each in view.ring.members if each.name != view.me.name)
        parts += [UNANSWERED for name in others if name not in view.alive]
        reserved = sum(part.get("reserved_bytes", 0) for part in parts)
        return {**warmup_sum(parts), "reserved_bytes": reserved}

    # -- from other members -------------------------------------------------------------------------------------------

    async def command(self, command: Command) -> dict[str, Any] | None:
        """Raises S3Error."""
        owner, name = command.owner, command.name
        pin = self._pinning.book.get(owner, name)
        if command.verb == "list":
            return self._list()
        if command.verb == "objects":
            return None if pin is None else _page(pin, command.body)
        if command.verb == "put":
            account = PinReport(owner, name, command.at, has_ended=False)
            self._runtime.spawn(self._take([account], command.sender), f"pin {name}")
        elif command.verb in ("delete", "cancel"):
            # "cancel": a member of 0.2 gives a pin back. It has a later account of the one before it, if there is one.
            await self._end(owner, name, command.at)
            pin = self._pinning.book.get(owner, name)
        return None if pin is None else {**self._pinning.report(pin, PART_NAMES_MAX), "at": pin.at}

    def _list(self) -> dict[str, Any]:
        pins = [PinReport(pin.owner, pin.name, pin.at, has_ended=False) for pin in self._pinning.book.all()]
        ended = [PinReport(*key, at, has_ended=True) for key, at in self._pinning.ended.items()]
        return fields_of(PinsReport((*pins, *ended)))

    async def _end(self, owner: str, name: str, at: float) -> None:
        self._note_end((owner, name), at)
        pin = self._pinning.book.get(owner, name)
        if pin is not None and pin.at <= at:
            await self._pinning.unpin(owner, name)

    def _note_end(self, key: Key, at: float) -> None:
        self._pinning.ended[key] = max(at, self._pinning.ended.pop(key, at))
        while len(self._pinning.ended) > _ENDED_MAX:
            self._pinning.ended.popitem(last=False)

    def _known_at(self, owner: str, name: str) -> float:
        """The time of the latest account of the pin."""
        pin = self._pinning.book.get(owner, name)
        return max(0.0 if pin is None else pin.at, self._pinning.ended.get((owner, name), 0.0))

    # -- pins that this member does not know  -----------------------------------------------------------------------

    def learn(self) -> None:
        """Ask members for their pins whose turn it is. To be called after each hello."""
        if not self._pinning.is_resumed:
            return
        view, now = self._others.view, self._runtime.clock()
        there = {(state.member.name, state.boot) for state in view.states if state.is_alive and state.in_ring}
        self._requested = {process: at for process, at in self._requested.items() if process in there}
        for process in there:
            if process not in self._requested or now - self._requested[process] >= _LEARN_AGAIN_S:
                self._requested[process] = now
                self._runtime.spawn(self._learn(process), f"pins of {process[0]}")

    async def _learn(self, process: tuple[str, int]) -> None:
        member = process[0]
        for _, answer in await self._others.ask(Command("", "list", "pin", "", "all"), member):
            if answer is None or answer.report is None:
                self._requested.pop(process, None)
                continue
            try:
                pins = of_fields(PinsReport, answer.report).pins
            except WireError as error:
                log.warning("pins of a member are not kept", extra={"peer": member, "error": str(error)})
            else:
                await self._take(pins, member)

    async def _take(self, pins: Iterable[PinReport], member: str) -> None:
        try:
            for pin in pins:
                await self._take_one(pin, member)
        except S3Error as error:
            log.warning("pins of a member are not kept", extra={"peer": member, "error": str(error)})

    async def _take_one(self, account: PinReport, member: str) -> None:
        if account.at <= self._known_at(account.owner, account.name):
            return
        if account.has_ended:
            await self._end(account.owner, account.name, account.at)
            return
        pin = Warmup(
            account.owner, "", account.name, b"", account.at, parse_list(b"s3://none/none"), lambda ref: True,
            self._runtime.clock(), 0.0,
        )  # fmt: skip
        await self._learn_objects(pin, member)
        pin.wanted = parse_list(pin.body)
        if account.at > self._known_at(account.owner, account.name):
            await self._pinning.adopt(pin)

    async def _learn_objects(self, pin: Warmup, member: str) -> None:
        """Fill in the pin as `member` has it. Raises ServiceUnavailable: it does not report its objects."""
        more = True
        while more:
            start = b"%d" % len(pin.items)
            question = Command("", "objects", "pin", pin.owner, pin.name, start)
            answers = [answer for _, answer in await self._others.ask(question, member)]
            try:
                page = of_fields(PinPage, (answers[0] and answers[0].report) or {} if answers else {})
            except WireError as error:
                raise ServiceUnavailable(f"The member {member} does not report what is pinned.") from error
            if page.at != pin.at:
                raise ServiceUnavailable("The pin was replaced meanwhile.")
            if not pin.items:
                pin.client, pin.body = page.client, page.body
            pin.add((ref, identity.size) for ref, identity in page.objects)
            for ref, identity in page.objects:
                pin.items[ref].is_named(identity)
            more = page.more and bool(page.objects)


def _page(pin: Warmup, body: bytes) -> dict[str, Any]:
    """The objects from the one on whose number is in `body`."""
    start = int(body) if body.isdigit() else 0
    items = list(pin.items.values())
    some = [(item.ref, item.identity) for item in items[start : start + OBJECTS_MAX]]
    more = start + len(some) < len(items)
    return fields_of(PinPage(pin.client, pin.at, b"" if start else pin.body, some, more))


def _named(member: str, part: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part, with the name of the member in the place of the object in a failure that is about no object."""
    failures = part.get("failures", ())
    return {**part, "failures": [{**each, "object": each["object"] or f"the part of {member}"} for each in failures]}
