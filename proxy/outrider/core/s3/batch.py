"""The request for a batch of objects: which ones, which bytes of each, and how a failure is reported."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from outrider.core.errors import InvalidArgument
from outrider.core.model import ObjectRef
from outrider.core.s3 import ranges
from outrider.core.s3.operation import ref_of
from outrider.core.s3.ranges import RangeSpec

READS_MAX = 1000
"""As many as a page of a LIST or a DeleteObjects."""
BODY_BYTES_MAX = 8 * 1024 * 1024
"""Room for so many keys of 1,024 bytes with each byte escaped as `\\u00NN`, and a range for each."""
_FORM = '"s3://bucket/key" or {"url": "s3://bucket/key", "range": "bytes=0-99"}'


class BatchRead(NamedTuple):
    """`span` None: the whole object. `requested_range`: `span` as the Range header has it."""

    ref: ObjectRef
    span: RangeSpec | None = None
    requested_range: str | None = None


class Batch(NamedTuple):
    """`fails_whole`: the first object that fails ends the batch; else it is an entry that says why."""

    reads: tuple[BatchRead, ...]
    fails_whole: bool = False


def parse_batch(body: bytes) -> Batch:
    """`{"reads": ["s3://bucket/key", {"url": "s3://bucket/key", "range": "bytes=0-99"}, ...], "errors": "entry"}`.

    `errors` may be left out. With `batch` in its place the batch fails with the first object.

    Raises:
        InvalidArgument: the body is no such message, or names more than `READS_MAX` objects; says which.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"A batch is a JSON object; this does not parse: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("reads"), list):
        raise InvalidArgument(f'A batch is a JSON object with "reads", a list of {_FORM}.')
    if unknown := sorted(fields.keys() - {"reads", "errors"}):
        raise InvalidArgument(f"A batch has no field {unknown[0]!r}; it may have: errors, reads.")
    reads: list[Any] = fields["reads"]
    if len(reads) > READS_MAX:
        raise InvalidArgument(f"A batch has {READS_MAX} reads at most, and this one {len(reads)}: send several.")
    errors = fields.get("errors", "entry")
    if errors not in ("entry", "batch"):
        raise InvalidArgument('"errors" is "entry" (an entry says why an object failed) or "batch" (all fails).')
    return Batch(tuple([_read(number, item) for number, item in enumerate(reads)]), errors == "batch")


def _read(number: int, item: object) -> BatchRead:
    if isinstance(item, str) and (ref := ref_of(item)) is not None:
        return BatchRead(ref)
    fields = item if isinstance(item, dict) else {"url": item}
    if unknown := sorted(fields.keys() - {"url", "range"}):
        raise InvalidArgument(f"reads[{number}] has no field {unknown[0]!r}: it is {_FORM}.")
    url, text = fields.get("url"), fields.get("range")
    ref = ref_of(url) if isinstance(url, str) else None
    if ref is None:
        raise InvalidArgument(f"reads[{number}] is not the URL of an object, like s3://bucket/key: {str(url)[:200]!r}")
    if text is None:
        return BatchRead(ref)
    if not isinstance(text, str) or (span := ranges.parse(text)) is None:
        raise InvalidArgument(f"reads[{number}] has a range that is not one like bytes=0-99: {str(text)[:200]!r}")
    return BatchRead(ref, span, text)
