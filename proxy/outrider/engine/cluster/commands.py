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
from outrider.ports import PeerTransport

log = logging.getLogger(__name__)


class MemberCommands:
    """The other members of this node's cache, as maintenance commands need them."""

    def __init__(self, view: Callable[[], View], transport: PeerTransport) -> None:
        self._view = view
        self._transport = transport

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
            log.info("a member did not take a command", extra={"peer": member.name, "why": error.why})
            return None
