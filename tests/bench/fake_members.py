"""Members of a cluster that answer from memory, in one process: `python -m tests.bench.fake_members MEMBERS KEY COUNT`.

They answer the real wire, and write themselves to the end of the list MEMBERS. Each is in the cluster of the member
that greets it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.adapters.process.listening import bind
from outrider.adapters.process.system import new_event_loop
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.peer_wire import Requester
from outrider.core.cluster.replay_guard import ReplayGuard
from outrider.http.peer.handler import Gatekeeper, PeerHandler
from outrider.http.peer.server import PeerServer
from outrider.http.wire.acceptor import Listener
from outrider.metrics import Metrics
from tests.support.child import Child
from tests.support.fake_peers import FakeMember, hello_of
from tests.support.simulator import READY_DEADLINE_S, REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outrider.core.cluster.messages import Answer, Notice, Question
    from tests.support.nodes import Nodes


class _Member(FakeMember):
    async def answer(self, message: Hello | Notice | Question) -> Hello | Answer | None:
        if isinstance(message, Hello):
            cluster_id = message.member.cluster_id
            self.mine = replace(self.mine, member=replace(self.mine.member, cluster_id=cluster_id), forgets=0)
            return self.mine
        return None

    def requester(self) -> Requester:
        return Requester(self.mine.member.name, "ring", self.mine.member.cluster_id)


@contextmanager
def fake_members(nodes: Nodes, directory: Path, count: int) -> Iterator[None]:
    """So many more members, which all nodes see alive."""
    argv: list[str | Path] = [sys.executable, "-m", __name__, nodes.members, nodes.key, str(count)]
    child = Child(argv, log=directory / "fakes.log", cwd=REPOSITORY)
    try:
        child.wait_until(lambda: child.log_tail().startswith("ready"), what="fakes", deadline_s=READY_DEADLINE_S)
        for node in nodes.running:
            node.wait_until(lambda node=node: len(node.alive()) == len(nodes.running) + count, "fakes alive")  # type: ignore[misc]
        yield
    finally:
        child.stop()


async def _serve(members: Path, secret: str, count: int) -> None:
    async with AsyncExitStack() as stack:
        lines = []
        for number in range(count):
            socket = bind("127.0.0.1", 0)
            address = f"127.0.0.1:{socket.getsockname()[1]}"
            name, metrics = f"fake-{number}", Metrics()
            member = _Member(hello_of(name, address))
            gatekeeper = Gatekeeper(name, lambda: [secret], ReplayGuard(), time.time)
            handler = PeerHandler(member, gatekeeper, member.requester, lambda _: True, metrics, reads_max=64)
            server = PeerServer(handler)
            listener = Listener(
                [socket], server, metrics.refused_connections, port="peer", connections_max=64,
                connected=lambda server=server: len(server.connections), make_room=server.make_room,  # type: ignore[misc]
            )  # fmt: skip
            stack.callback(listener.abort)
            lines.append(f"{address} name={name}\n")
        with members.open("a") as file:
            file.writelines(lines)
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("members", type=Path)
    parser.add_argument("key", type=Path)
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(given.members, given.key.read_text().strip(), given.count))


if __name__ == "__main__":
    main()
