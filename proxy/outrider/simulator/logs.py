"""Takes the reads of a real run out of the proxy's own JSON log, to simulate that run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime

from outrider.core.model import Extent
from outrider.core.s3 import ranges
from outrider.simulator.scenarios import Request


def requests_of(lines: Iterable[str]) -> list[Request]:
    """The answered GETs of objects in a log, the first at 0 s. Other lines are skipped.

    The log does not have the sizes of objects: an object is taken to end where its farthest read did.
    """
    found = sorted(_read(lines), key=lambda read: read[0])
    sizes: dict[tuple[str, str], int] = {}
    for _, _, bucket, key, extent in found:
        sizes[bucket, key] = max(sizes.get((bucket, key), 0), extent.stop)
    begin = found[0][0] if found else 0.0
    return [
        Request(at - begin, client, bucket, key, extent.start, extent.stop, sizes[bucket, key])
        for at, client, bucket, key, extent in found
    ]


def _read(lines: Iterable[str]) -> Iterator[tuple[float, str, str, str, Extent]]:
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the end of the log cut this line
        if record.get("op") != "get" or record.get("status") not in (200, 206) or not record.get("bytes"):
            continue
        ended = datetime.fromisoformat(record["time"]).timestamp()
        start = _start_of(record.get("range"))
        if start is not None:
            extent = Extent(start, start + int(record["bytes"]))
            client = f"{record.get('address', '')} {record.get('client', '-')} {record.get('app', '')}"
            yield ended - float(record["seconds"]), client, record["bucket"], record["key"], extent


def _start_of(header: str | None) -> int | None:
    """None: a range of the last bytes, whose start is not known."""
    spec = ranges.parse(header) if header else None
    return 0 if spec is None else spec.first
