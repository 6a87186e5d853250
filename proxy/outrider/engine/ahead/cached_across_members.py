"""Which objects of a plan are here as a whole, wherever in the cluster their blocks are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outrider.core.cluster.held_blocks import Blocks, HeldBlocks, is_whole
from outrider.core.cluster.messages import Command, CommandAnswer, OrderNotice, parts_of
from outrider.core.cluster.wire_forms import WireError, decode, encode, fields_of, of_fields
from outrider.core.model import ObjectRef
from outrider.engine.ahead.background_fill import BackgroundFill, CachedBlocks
from outrider.engine.cluster.commands import MemberCommands

# So many objects are looked up before other work has its turn.
_AT_ONCE = 100


class CachedAcrossMembers:
    """Called on the engine's thread."""

    def __init__(self, fills: BackgroundFill, commands: MemberCommands) -> None:
        self._fills = fills
        self._commands = commands

    async def count(self, refs: Sequence[ObjectRef]) -> int:
        """How many of the objects are in the caches of the members as a whole. A member that does not answer has
        nothing."""
        found = dict(zip(refs, await self._look(refs), strict=True))
        open_refs = [ref for ref, blocks in found.items() if blocks is None or not blocks.is_whole]
        here, me = len(refs) - len(open_refs), self._commands.view.me.name
        try:
            parts = list(parts_of(OrderNotice(me, 0, 0, 0, "", tuple(open_refs)))) if open_refs else []
        except WireError:
            return here  # no object has such a name
        for part in parts:
            answers = await self._commands.ask(Command(me, "get", "plan", "", "here", encode(part)))
            held = [_held(answer, len(part.refs)) for _, answer in answers]
            here += sum(is_whole([found[ref], *its]) for ref, *its in zip(part.refs, *held, strict=True))
        return here

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


def _held(answer: CommandAnswer | None, count: int) -> Sequence[Blocks | None]:
    """The blocks that a member has of each of so many objects."""
    try:
        here = of_fields(HeldBlocks, (None if answer is None else answer.report) or {}).here
    except WireError:
        here = ()
    return here if len(here) == count else [None] * count
