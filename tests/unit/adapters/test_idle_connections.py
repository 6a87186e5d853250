"""Where more idle connections would be kept than may be, the oldest one is closed, whichever server it is to."""

from __future__ import annotations

import asyncio

from outrider.adapters.origin.idle_connections import IdleConnections


class Kept:
    is_open = True

    def close(self) -> None:
        self.is_open = False


async def test_the_oldest_of_all_servers_is_given_up() -> None:
    idle: IdleConnections[Kept] = IdleConnections(most=3)
    kept = [Kept() for _ in range(6)]
    for connection, server in zip(kept, "abaabb", strict=True):
        idle.put(server, connection)
        # Two of them must differ in time.
        await asyncio.sleep(0.001)
    assert [each.is_open for each in kept] == [False] * 3 + [True] * 3
    assert len(idle) == 3
    assert (idle.take("a"), idle.take("a"), idle.take("b")) == (kept[3], None, kept[5])
    idle.put("a", kept[5])
    idle.put("a", kept[3])
    assert all(each.is_open for each in kept[3:]), "a server without one has none to give up"
    idle.close()
