"""Commands for the other members, of which some do not answer."""

from __future__ import annotations

import logging
from pathlib import Path

from outrider.core.cluster.messages import Command
from outrider.engine.cluster.commands import MemberCommands
from tests.support.fake_peers import FakePeers
from tests.support.fakes import FakeClock
from tests.support.logs import logged
from tests.support.members import timed_cluster


async def test_a_member_that_does_not_answer_is_logged_once_a_minute(tmp_path: Path) -> None:
    """A client polls the progress of its plan once a second, and each poll asks all members."""
    clock = FakeClock()
    with (
        timed_cluster(tmp_path) as (time, nodes),
        logged("outrider.engine.cluster.commands", logging.INFO) as seen,
    ):
        await time.run(nodes.meet())
        asker, *_ = nodes
        commands = MemberCommands(asker.view, FakePeers(asker.name), clock)

        async def named(only: str | None = None) -> list[str]:
            """The members that the log names while three commands are sent."""
            seen.clear()
            for _ in range(3):
                assert {answer for _, answer in await commands.ask(Command("", "get", "plan", "", "here"), only)} == {
                    None
                }
            return [record.__dict__["peer"] for record in seen]

        assert await named("b") == ["b"]
        clock.advance(30)
        assert await named() == ["c"]
        clock.advance(29)
        assert await named() == []
        clock.advance(1)
        assert await named() == ["b"]
        clock.advance(30)
        assert await named() == ["c"]
