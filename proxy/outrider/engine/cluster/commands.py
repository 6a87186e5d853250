"""Passes maintenance commands on to the other members of this node's cache."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import Command, CommandAnswer
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.view import View
from outrider.ports import Clock, PeerTransport

log = logging.getLogger(__name__)

# The progress of a plan or a warm-up is polled for hours, and each poll asks a member that does not answer.
_LOG_PAUSE_S = 60.0


class MemberCommands:
    """The other members of this node's cache, as maintenance commands need them."""

    def __init__(self, view: Callable[[], View], transport: PeerTransport, clock: Clock) -> None:
        self._view = view
        self._transport = transport
        self._clock = clock
        # By member: when its silence was logged, within the last minute.
        self._logged_at: dict[str, float] = {}

    @property
    def view(self) -> View:
        return self._view()

    async def ask(self, command: Command, only: str | None = None) -> Sequence[tuple[str, CommandAnswer | None]]:
        """The answer of each other member of the ring that is there, with its name; None: it gave none. `only`: ask
        this one alone. The sender is filled in."""
        view = self._view()
        members = [
            view.alive[each.name]
            for each in view.ring.members
            if each.name in view.alive and each.name != view.me.name and only in (None, each.name)
        ]
        command = replace(command, sender=view.me.name)
        answers = await asyncio.gather(*(self._request(member, command) for member in members))
        return [(member.name, answer) for member, answer in zip(members, answers, strict=True)]

    async def _request(self, member: Member, command: Command) -> CommandAnswer | None:
        try:
            return await self._transport.request(member, command, CommandAnswer)
        except PeerFailed as error:
            self._log(member.name, error.why)
            return None

    def _log(self, name: str, why: str) -> None:
        """At INFO once per member and minute."""
        now = self._clock()
        self._logged_at = {each: at for each, at in self._logged_at.items() if now < at + _LOG_PAUSE_S}
        level = logging.DEBUG if name in self._logged_at else logging.INFO
        self._logged_at.setdefault(name, now)
        log.log(level, "a member did not take a command", extra={"peer": name, "why": why})
