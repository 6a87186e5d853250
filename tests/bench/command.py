"""The parts that the commands of tests/bench have in common."""

from __future__ import annotations

import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.child import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Iterator


def end_on_signals() -> None:
    """SIGTERM and SIGINT raise KeyboardInterrupt, so that all started processes end on the way out. SIGINT is set by
    name, since a shell starts its background processes with Ctrl-C ignored."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupted)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def report_progress(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


@contextmanager
def directory(prefix: str, *, keep: bool) -> Iterator[Path]:
    """A new one, removed at the end unless it is to be kept."""
    if not keep:
        with scratch_directory(prefix) as made:
            yield made
        return
    kept = Path(tempfile.mkdtemp(prefix=prefix))
    print(f"keeping {kept}", file=sys.stderr)
    yield kept
