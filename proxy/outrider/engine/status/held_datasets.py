"""The bytes that this node has of each dataset, and the share of them that is verified. Pods are placed by that."""

from __future__ import annotations

import asyncio
from typing import Any

from outrider.core.ahead.planner import Planner
from outrider.core.insight.dataset_map import data_bytes

# The status shows few datasets, and those that were warmed and not read yet last. Here are the largest.
_TOLD_MAX = 256


class HeldDatasets:
    """Called on the engine's loop."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    async def told(self) -> dict[str, Any]:
        """Under `datasets`, with the most bytes here first: `bucket`, `name`, `bytes` in all, `cached` (a share of
        these) and `verified` (a share of what is cached)."""
        held = [(name, dataset) for name, dataset in self._planner.registry.items() if dataset.kept_bytes > 0]
        held.sort(key=lambda each: each[1].kept_bytes, reverse=True)
        told = []
        for (bucket, template), dataset in held[:_TOLD_MAX]:
            whole, here = data_bytes(dataset), dataset.kept_bytes
            if here == 0:
                continue  # evicted since
            told.append({
                "bucket": bucket, "name": template, "bytes": whole, "cached": min(1.0, here / whole) if whole else 0.0,
                "verified": dataset.proved_bytes / here,
            })  # fmt: skip
            # Sizes of a large dataset take some tenths of a millisecond.
            await asyncio.sleep(0)
        return {"datasets": told}
