"""The resources of a running proxy: memory, descriptors, threads, tasks, temporary files."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.proxy import ServedProxy

ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """The resources of one process at one moment. `anonymous_bytes`: its memory less the pages that it shares with
    files on disk."""

    anonymous_bytes: int
    descriptors: int
    threads: int
    tasks: int
    connections: int
    temporary_files: int

    @classmethod
    def of(cls, served: ServedProxy) -> Vitals:
        """Reading `/status` takes a connection and a task: the same in each measurement."""
        document = status(served)
        proc = Path("/proc") / str(served.pid)
        lines = (line.partition(":") for line in (proc / "status").read_text().splitlines())
        fields = {name: value.split() for name, _, value in lines}
        return cls(
            int(fields["RssAnon"][0]) * 1024, len(list((proc / "fd").iterdir())), int(fields["Threads"][0]),
            document["tasks"], document["connections"], len(list((served.cache_dir / "tmp").glob("*.*"))),
        )  # fmt: skip


def status(served: ServedProxy) -> dict[str, int]:
    """The content of the admin port's /status."""
    with urllib.request.urlopen(f"{served.admin}/status", timeout=ANSWER_S) as answer:
        document: dict[str, int] = json.load(answer)
    return document
