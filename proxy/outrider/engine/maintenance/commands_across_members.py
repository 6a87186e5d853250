"""Maintenance commands that the members of a cluster carry out together, each for the blocks that it owns.

The member that a client asked leads: it passes the command on, asks each member for its part of the progress, and has
the work divided again when the ring, or the members that are there, have changed. A member that came back without
knowing of the command gets it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from outrider.core.cluster.messages import Command, CommandAnswer
from outrider.core.errors import ServiceUnavailable
from outrider.core.maintenance.copies import before_0_3
from outrider.core.maintenance.progress import State
from outrider.core.maintenance.progress_sum import UNANSWERED, failed_part
from outrider.engine.cluster.commands import MemberCommands
from outrider.engine.maintenance.own_part import OwnPart
from outrider.engine.maintenance.pins_across_members import PinsTogether
from outrider.engine.maintenance.warmup import Book, Warmup
from outrider.engine.maintenance.warmup_runner import WarmupRunner
from outrider.engine.tasks.runtime import Runtime

Part = Mapping[str, Any]

# The members are asked for their parts so often; sooner at the beginning, as small warm-ups end at once, and when the
# own part has ended, as the others end about then.
_LOOK_S = 1.0
_FIRST_LOOK_S = 0.1


class Together:
    """Called on the engine's thread."""

    def __init__(
        self, others: MemberCommands, warmups: Book, runner: WarmupRunner, runtime: Runtime, pins: PinsTogether
    ) -> None:  # fmt: skip
        self._others = others
        self._warmups = warmups
        self._runner = runner
        self._runtime = runtime
        self.pins = pins

    def share_of(self, bytes_per_s: float) -> float:
        """Each member's share of the bandwidth limit of a warm-up; 0: none."""
        return bytes_per_s / len(self._others.view.acting.members)

    # -- all commands -------------------------------------------------------------------------------------------------

    async def pass_on(self, verb: str, folder: str, owner: str, name: str, body: bytes = b"") -> list[Part]:
        """Have all members act. Returns their parts. Raises ServiceUnavailable: one did not."""
        answers = await self._others.ask(Command("", verb, folder, owner, name, body))
        for member, answer in answers:
            if answer is None or answer.error:
                why = "it does not answer" if answer is None else answer.error
                raise ServiceUnavailable(f"The member {member} did not carry it out: {why}.")
        return [answer.report for _, answer in answers if answer is not None and answer.report is not None]

    async def parts(self, put: Command, *, repeats: bool) -> list[Part]:
        """The other members' parts of the command that `put` made. `repeats`: members that do not know of it
        get it."""
        question = Command("", "get", put.folder, put.owner, put.name)
        return [await self._part(put, *each, repeats=repeats) for each in await self._others.ask(question)]

    async def _part(self, put: Command, member: str, answer: CommandAnswer | None, *, repeats: bool) -> Part:
        if repeats and answer is not None and answer.report is None:
            for _, again in await self._others.ask(put, member):
                answer = again
        if answer is None:
            return UNANSWERED
        if answer.report is None:
            return failed_part(member, answer.error or "it does not know of the command")
        if put.copies not in (None, 1) and "copies" not in answer.report:
            return {**answer.report, "notes": [before_0_3(member)]}
        return answer.report

    # -- warm-ups -----------------------------------------------------------------------------------------------------

    def lead(self, warmup: Warmup) -> None:
        """See to it that all members do their parts. The warm-up runs here already."""
        warmup.is_led = True
        task = self._runtime.spawn(self._lead(warmup), f"warm {warmup.name} everywhere")
        task.add_done_callback(lambda _: setattr(warmup, "is_led", False))

    async def look(self, warmup: Warmup) -> None:
        """Ask the other members for their parts."""
        warmup.other_parts = await self.parts(self._put_of(warmup), repeats=warmup.is_led)

    async def _lead(self, warmup: Warmup) -> None:
        divided, pause_s = await self._divide(warmup), _FIRST_LOOK_S
        while self._is_wanted(warmup):
            if not divided.is_as(self._others.view):
                divided = await self._divide(warmup)
                self._begin_again(warmup)
            await self.look(warmup)
            over = not any(part["state"] == State.RUNNING.value for part in warmup.other_parts)
            if over and not warmup.running and divided.is_as(self._others.view):
                return
            was_running = warmup.running
            await self._pause(warmup, pause_s)
            pause_s = _FIRST_LOOK_S if was_running and not warmup.running else min(_LOOK_S, 2 * pause_s)
        is_known = self._warmups.get(warmup.owner, warmup.name) is warmup
        if is_known and warmup.progress.state is State.CANCELLED:
            # A member may have got the command to begin after the one to end.
            await self._others.ask(Command("", "cancel", "warm", warmup.owner, warmup.name))

    async def _pause(self, warmup: Warmup, seconds: float) -> None:
        """For so long, or until the own part has ended."""
        bound: asyncio.Future[Any] = asyncio.ensure_future(self._runtime.sleep(seconds))
        own = [warmup.task] if warmup.running and warmup.task is not None else []
        try:
            await asyncio.wait([bound, *own], return_when=asyncio.FIRST_COMPLETED)
        finally:
            bound.cancel()

    async def _divide(self, warmup: Warmup) -> OwnPart:
        """Notify all members. Returns how the blocks are divided."""
        divided = OwnPart(self._others.view, self._runner.layout)
        await self._others.ask(self._put_of(warmup))
        return divided

    def _begin_again(self, warmup: Warmup) -> None:
        """A part that runs notices by itself that it is divided anew."""
        if not warmup.running and self._is_wanted(warmup):
            warmup.divide_anew(self._runner.clock())
            self._runner.begin(warmup)

    def _is_wanted(self, warmup: Warmup) -> bool:
        is_known = self._warmups.get(warmup.owner, warmup.name) is warmup
        return is_known and warmup.progress.state is not State.CANCELLED

    def _put_of(self, warmup: Warmup) -> Command:
        return Command("", "put", "warm", warmup.owner, warmup.name, warmup.body, warmup.allowance.bytes_per_s,
                       copies=warmup.copies)  # fmt: skip
