"""The objects that this node has of each dataset, as far as they are verified. Pods are placed by that."""

from __future__ import annotations

from typing import Any

from outrider.core.ahead.planner import Planner
from outrider.engine.status.dataset_samples import objects_max, sample_of

# The status shows few datasets, and those that were warmed and not read yet last. Here are the largest.
_TOLD_MAX = 256


class HeldDatasets:
    """Called on the engine's loop."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    async def told(self) -> dict[str, Any]:
        """Under `datasets`, with the most bytes here first: `bucket`, `name`, and a sample of the objects that this
        node knows: `objects`, each with its number, its size in bytes, and the bytes of it that are here and verified;
        `below`, see `core.cluster.object_samples`."""
        held = [(name, dataset) for name, dataset in self._planner.registry.items() if dataset.kept_bytes > 0]
        held.sort(key=lambda each: each[1].kept_bytes, reverse=True)
        most = objects_max(min(len(held), _TOLD_MAX))
        told = []
        for (bucket, template), dataset in held[:_TOLD_MAX]:
            if dataset.kept_bytes == 0:
                continue  # evicted since
            sample = await sample_of(dataset, most, lambda cached: cached.proved & cached.present)
            told.append({"bucket": bucket, "name": template, "below": sample.below, "objects": sample.objects})
        return {"datasets": told}
