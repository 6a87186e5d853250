"""Fault-injection tests: how often each tries, objects whose every byte is known, and the tables of what was tried.

The same tests are short in `make test` and long in `make soak`: `rounds()` stretches them, and the run ends with the
tables.
"""

from __future__ import annotations

import http.client
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings

from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from tests.support.bucket import Bucket


SCALE = int(os.environ.get("OUTRIDER_TEST_SCALE", "1"))
"""The factor by which trials are longer than in `make test`."""


def rounds(short: int, of: int | None = None) -> int:
    """The number of tries for a test that makes `short` tries in `make test`. `of`: as many times `SCALE` are made in
    `make soak`; None: `short`."""
    return short if SCALE == 1 else SCALE * (of or short)


@dataclass
class Trial:
    """One fault. `lost` counts wrong bytes, short bodies that looked whole, and acknowledged writes that are gone."""

    saw: Counter[str] = field(default_factory=Counter)
    lost: int = 0


class Trials:
    """The trials of this run, by area and fault."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Trial] = {}

    def record(self, area: str, fault: str, saw: str, *, times: int = 1, lost: int = 0) -> None:
        """`saw` is the result in a user's words: "the right bytes", "a broken connection", "503 SlowDown"."""
        row = self.rows.setdefault((area, fault), Trial())
        row.saw[saw] += times
        row.lost += lost

    def table(self) -> list[str]:
        """Markdown lines, in the order of areas and faults; none where nothing was recorded."""
        if not self.rows:
            return []
        lines = ["| area | fault | tried | what the client saw | lost or wrong |", "| --- | --- | --- | --- | --- |"]
        for (area, fault), row in sorted(self.rows.items()):
            saw = ", ".join(f"{what} {times:,}" if len(row.saw) > 1 else what for what, times in row.saw.most_common())
            lines.append(f"| {area} | {fault} | {row.saw.total():,} | {saw} | {row.lost} |")
        return lines

    def summary(self) -> list[str]:
        """Markdown lines, one an area: how many faults, how often they were tried, and the losses of all."""
        if not self.rows:
            return []
        lines = ["| area | faults | tried | lost or wrong |", "| --- | ---: | ---: | ---: |"]
        for area in sorted({area for area, _ in self.rows}):
            rows = [row for (of, _), row in self.rows.items() if of == area]
            tried = sum(row.saw.total() for row in rows)
            lines.append(f"| {area} | {len(rows)} | {tried:,} | {sum(row.lost for row in rows)} |")
        return lines


def fuzzing(short: int, of: int | None = None) -> settings:
    """A decorator: `short` examples in `make test`. `of`: as for `rounds`."""
    return settings(
        max_examples=rounds(short, of), derandomize=SCALE == 1, deadline=None, database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip


KIB = 1024
RIGHT = "the right bytes"
BROKEN = "a broken connection"


@dataclass(frozen=True, slots=True)
class KnownObjects:
    """Objects `NAME/0`, `NAME/1`, ... in a bucket. No two blocks of them are alike."""

    name: str
    objects: dict[str, bytes]

    @classmethod
    def make(cls, bucket: Bucket, name: str, count: int, size: int = 256 * KIB) -> KnownObjects:
        chance = random.Random(name)
        known = cls(name, {str(i): chance.randbytes(size) for i in range(count)})
        bucket.make_bucket(name)
        client = bucket.client()
        for key, data in known.objects.items():
            client.put_object(Bucket=name, Key=key, Body=data)
        client.close()
        return known

    def read(self, connection: RawConnection, key: str, start: int = 0, stop: int | None = None) -> str:
        """The result of a read of bytes `[start, stop)`: RIGHT, BROKEN (also when the body is shorter than announced),
        or the status.

        Raises:
            WrongBytes: the body has other bytes, which must never happen.
        """
        whole = self.objects[key]
        wanted = whole[start : len(whole) if stop is None else stop]
        headers = [] if (start, stop) == (0, None) else [("range", f"bytes={start}-{start + len(wanted) - 1}")]
        try:
            answer = connection.ask("GET", f"/{self.name}/{key}", headers)
        except (OSError, http.client.HTTPException):
            return BROKEN
        if answer.status not in (200, 206):
            return f"status {answer.status}"
        if answer.body != wanted:
            raise WrongBytes(f"{self.name}/{key}: {len(answer.body)} of {len(wanted)} bytes, or wrong ones")
        return RIGHT

    def read_any(self, connection: RawConnection, chance: random.Random) -> str:
        """A random object, whole or a part of it."""
        key = chance.choice(list(self.objects))
        size = len(self.objects[key])
        if chance.random() < 0.5:
            return self.read(connection, key)
        start = chance.randrange(size)
        return self.read(connection, key, start, chance.randint(start + 1, size))

    def read_all(self, address: tuple[str, int]) -> str:
        """RIGHT, or the first other result."""
        with RawConnection(address) as connection:
            for key in self.objects:
                if (saw := self.read(connection, key)) != RIGHT:
                    return saw
        return RIGHT


class WrongBytes(AssertionError):
    """A client got other bytes than the object has, and had no means to notice."""
