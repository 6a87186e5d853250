"""The end of a batch: reads that were begun before their turn end before it does, also if it is cancelled twice."""

from __future__ import annotations

import asyncio

import pytest

from outrider.http.control.batch_body import _all_ended


def test_a_second_cancel_waits_for_reads_that_are_ending() -> None:
    async def scene() -> None:
        gate, ended = asyncio.Event(), []

        async def read() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await gate.wait()
                ended.append(True)

        reads = [asyncio.create_task(read()) for _ in range(3)]
        await asyncio.sleep(0)
        ending = asyncio.create_task(_all_ended(reads))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.sleep(0)
        assert not ending.done()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert ended == [True] * 3

    asyncio.run(scene())
