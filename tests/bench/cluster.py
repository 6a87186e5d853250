"""The goals of many nodes, measured with real processes: `make bench-cluster`.

`python -m tests.bench.cluster --only ROW,ROW` measures some of them. Nodes run on loopback addresses, or on hosts of a
switch (network namespaces) where their links have a rate. Exits 1 when a read failed, never for a goal that was missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from tests.bench import cluster_ahead, cluster_costs, cluster_faults, cluster_reads, cluster_simulated, command
from tests.bench.cluster_goals import Measured, markdown, plot, table
from tests.bench.cluster_world import Row, RowError
from tests.support.child import scratch_directory

ROWS: dict[str, Row] = {
    **cluster_reads.ROWS,
    **cluster_costs.ROWS,
    **cluster_faults.ROWS,
    **cluster_ahead.ROWS,
    **cluster_simulated.ROWS,
}
"""By name. Each measures with nodes and data of its own in a new directory."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cluster", description=__doc__)
    parser.add_argument("--only", default=",".join(ROWS), metavar="ROW,ROW", help="of %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write what was measured to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write a picture of it, a PNG or SVG")
    parser.add_argument("--markdown", action="store_true", help="also print the table in Markdown")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data's size: below 1 a try (%(default)s)")
    chosen = parser.parse_args()
    names = chosen.only.split(",")
    if unknown := set(names) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    command.end_on_signals()
    measured: list[Measured] = []
    failed = False
    try:
        for name in names:
            begun = time.monotonic()
            try:
                with console.status(name), scratch_directory(f"outrider-bench-{name}-") as directory:
                    measured += ROWS[name](directory, chosen.scale)
            except (RowError, RuntimeError) as error:
                failed = True
                console.print(f"[bold red]{name} failed:[/] {escape(str(error))}", highlight=False)
            console.print(f"{name}: {time.monotonic() - begun:.0f} s", highlight=False)
    except KeyboardInterrupt:
        return 130
    finally:
        if measured:
            console.print(table(measured))
            if chosen.json:
                chosen.json.write_text(json.dumps([one.as_dict() for one in measured], indent=2) + "\n")
            if chosen.markdown:
                print(markdown(measured), end="")
            if chosen.plot:
                plot(measured, chosen.plot)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
