"""Three papers side by side with Outrider: `make papers` prints a table for each.

`python -m tests.bench.papers --only deli,tdcs` measures some of them. A paper's figures were measured by its authors on
their machines; the others here, all of one table in one run. The ratios to a table's first line can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import command, papers_deli, papers_igear, papers_tdcs, report
from tests.bench.ahead_live import RunFailed
from tests.bench.cluster_world import RowError
from tests.bench.papers_table import Table, plot
from tests.support.child import scratch_directory

Paper = Callable[[Path, float, Callable[[str], None]], Table]
"""Measures in a new directory, with data of its usual size times a number; the last argument gets the progress."""

PAPERS: dict[str, Paper] = {"deli": papers_deli.table, "tdcs": papers_tdcs.table, "igear": papers_igear.table}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.papers", description=__doc__)
    parser.add_argument("--only", default=",".join(PAPERS), metavar="PAPER,PAPER", help="of %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the tables to this file")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="also write a picture of each: papers-deli.png ...")
    size = "of the data's size: below 1 a try (%(default)s); DELI at 36 has 50,400 samples"
    parser.add_argument("--scale", type=float, default=1.0, help=size)
    chosen = parser.parse_args()
    names = chosen.only.split(",")
    if unknown := set(names) - set(PAPERS):
        parser.error(f"no such paper: {', '.join(sorted(unknown))}; there are {', '.join(PAPERS)}")
    command.end_on_signals()
    tables: list[Table] = []
    failed = False
    machine = report.machine()
    print(
        "\n".join(f"- {name}: {machine[name]}" for name in ("cpu", "cores", "memory", "kernel", "python")), flush=True
    )
    try:
        for name in names:
            begun, load = time.monotonic(), os.getloadavg()[0]
            try:
                with scratch_directory(f"outrider-papers-{name}-") as directory:
                    tables.append(PAPERS[name](directory, chosen.scale, command.report_progress))
            except (RowError, RunFailed, RuntimeError) as error:
                failed = True
                print(f"{name} failed: {error}", file=sys.stderr)
            else:
                print(f"\n{tables[-1].markdown()}", end="")
            print(
                f"- {name}: {time.monotonic() - begun:.0f} s; the load of the machine was {load:.1f} before", flush=True
            )
    except KeyboardInterrupt:
        return 130
    finally:
        if chosen.json:
            written = {"machine": machine, "tables": [table.as_dict() for table in tables]}
            chosen.json.write_text(json.dumps(written, indent=2) + "\n")
        if chosen.plot:
            chosen.plot.mkdir(parents=True, exist_ok=True)
            for table in tables:
                plot(table, chosen.plot / f"papers-{table.name}.png")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
