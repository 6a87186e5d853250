"""Reads out of a proxy's own JSON log, for a simulation of the run that wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime

from outrider.core.model import Extent
from outrider.core.s3 import ranges
from outrider.simulator.worlds import Request


def requests_of(lines: Iterable[str]) -> list[Request]:
    """The answered GETs of objects in a log, the first at 0 s. Lines of other kinds are passed over.

    An object's size is not logged: it is taken to end where the farthest read did.
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
            said = json.loads(line)
        except ValueError:
            continue  # a line that the end of the log cut
        if said.get("op") != "get" or said.get("status") not in (200, 206) or not said.get("bytes"):
            continue
        ended = datetime.fromisoformat(said["time"]).timestamp()
        start = _start_of(said.get("range"))
        if start is not None:
            extent = Extent(start, start + int(said["bytes"]))
            who = f"{said.get('address', '')} {said.get('client', '-')} {said.get('app', '')}"
            yield ended - float(said["seconds"]), who, said["bucket"], said["key"], extent


def _start_of(header: str | None) -> int | None:
    """None: the last bytes, wherever they begin."""
    spec = ranges.parse(header) if header else None
    return 0 if spec is None else spec.first
