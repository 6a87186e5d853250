"""The open files of this process, as `/proc` tells them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def open_below(directory: Path) -> list[str]:
    """The targets of the open descriptors that lead below `directory`.

    Descriptors that lead elsewhere do not count: those of earlier tests may be closed at any time, by the garbage
    collector or in a thread.
    """
    targets: list[str] = []
    for fd in os.listdir("/proc/self/fd"):
        # The descriptor of the listing itself is closed by now, and another may be.
        with suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [target for target in targets if target.startswith(f"{directory}/")]
