"""A library that is imported when it is first used.

Each process of `make test` collects all tests: torch takes two seconds of CPU in each, and one of them uses it.
"""

from __future__ import annotations

import importlib
from typing import Any


class Later:
    """Stands for the module of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("_", "pytest")):
            # pytest looks for fixtures and marks in all that a test module has.
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)
