"""Records of fault-injection trials, their results and losses: the rows of docs/reliability.md.

The same tests are short in `make test` and long in `make soak`: `rounds()` stretches them, and the run ends with the
table.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field

SCALE = int(os.environ.get("OUTRIDER_TEST_SCALE", "1"))
"""The factor by which trials are longer than in `make test`."""


def rounds(short: int) -> int:
    """The number of tries for a test that makes `short` tries in `make test`."""
    return short * SCALE


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
