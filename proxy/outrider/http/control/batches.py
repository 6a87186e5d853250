"""Batches: a POST of a list of objects is answered by one tar of them."""

from __future__ import annotations

from collections.abc import Callable

from outrider.core.cache.memory_budget import MemoryBudget
from outrider.core.insight.usage import DatasetName
from outrider.core.s3.batch import BODY_BYTES_MAX, parse_batch
from outrider.core.s3.operation import Operation
from outrider.http.control.batch_body import BatchBody
from outrider.http.control.batch_objects import BatchObjects, BatchParts
from outrider.http.control.objects import ControlAnswer, ControlRequest
from outrider.http.record.record import BatchCounts

_KEY = "batch"
_HEADERS = (("content-type", "application/x-tar"), ("cache-control", "no-store"))


def is_batch(operation: Operation) -> bool:
    """Whether a request to the control bucket asks for a batch."""
    return operation.method == "POST" and operation.key == _KEY


class Batches:
    def __init__(
        self, parts: BatchParts, memory: MemoryBudget, dataset_of: Callable[[str, str], DatasetName]
    ) -> None:  # fmt: skip
        """`memory`: see `batch_body`. `dataset_of`: see `BatchCounts`."""
        self._parts = parts
        self._memory = memory
        self._dataset_of = dataset_of

    async def answer(self, request: ControlRequest) -> ControlAnswer:
        """The caller begins the body. Raises S3Error."""
        batch = parse_batch(await request.body(BODY_BYTES_MAX))
        counts = BatchCounts(self._dataset_of, batch.reads[0].ref if batch.reads else None)
        objects = BatchObjects(self._parts, request.who, request.client, counts)
        return ControlAnswer(200, _HEADERS, batch=BatchBody(batch, objects, self._memory))
