"""Which objects of a plan are here as a whole, wherever in the cluster their blocks are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from outrider.core.cluster.held_blocks import Blocks, HeldBlocks, is_whole
from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import Command, CommandAnswer, OrderNotice, parts_of
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.view import View
from outrider.core.cluster.wire_forms import WireError, decode, encode, fields_of, of_fields
from outrider.core.model import ObjectRef
from outrider.engine.ahead.background_fill import BackgroundFill, CachedBlocks
from outrider.ports import PeerTransport

log = logging.getLogger(__name__)

# So many objects are looked up before other work has its turn.
_AT_ONCE = 100


class CachedAcrossMembers:
    """Called on the engine's thread."""

    def __init__(self, fills: BackgroundFill, view: Callable[[], View], transport: PeerTransport) -> None:
        self._fills = fills
        self._view = view
        self._transport = transport

    async def count(self, refs: Sequence[ObjectRef]) -> int:
        """How many of the objects are in the caches of the members as a whole. A member that does not answer has
        nothing."""
        view = self._view()
        others = [member for name, member in view.alive.items() if name in view.acting]
        found = dict(zip(refs, await self._look(refs), strict=True))
        open_refs = [ref for ref, blocks in found.items() if blocks is None or not blocks.is_whole]
        if not others or not open_refs:
            return len(refs) - len(open_refs)
        here = len(refs) - len(open_refs)
        try:
            parts = list(parts_of(OrderNotice(view.me.name, 0, 0, 0, "", tuple(open_refs))))
        except WireError:
            return here  # no object has such a name
        for part in parts:
            answers = await asyncio.gather(*(self._look_up_at(member, part) for member in others))
            here += sum(is_whole([found[ref], *its]) for ref, *its in zip(part.refs, *answers, strict=True))
        return here

    async def _look_up_at(self, member: Member, part: OrderNotice) -> Sequence[Blocks | None]:
        command = Command(part.sender, "get", "plan", "", "here", encode(part))
        try:
            answer = await self._transport.request(member, command, CommandAnswer)
            here = of_fields(HeldBlocks, answer.report or {}).here
            if len(here) != len(part.refs):
                raise WireError("here: not of their number")
            return here
        except (PeerFailed, WireError) as error:
            log.debug("a member does not tell what is here", extra={"peer": member.name, "error": str(error)})
            return [None] * len(part.refs)

    async def answer(self, command: Command) -> CommandAnswer:
        """The blocks that are here of the objects that another member asks about."""
        try:
            refs = decode(OrderNotice, command.body).refs
        except WireError as error:
            return CommandAnswer(error=str(error))
        return CommandAnswer(fields_of(HeldBlocks(await self._look(refs))))

    async def _look(self, refs: Sequence[ObjectRef]) -> list[CachedBlocks | None]:
        found: list[CachedBlocks | None] = []
        for first in range(0, len(refs), _AT_ONCE):
            found += map(self._fills.cached_blocks, refs[first : first + _AT_ONCE])
            await asyncio.sleep(0)
        return found
