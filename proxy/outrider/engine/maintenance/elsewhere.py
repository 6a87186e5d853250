"""The other members of a cluster, as maintenance commands need them. `engine/cluster/commands` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.core.cluster.command_messages import Command, CommandAnswer
from outrider.core.cluster.view import View


class Elsewhere(Protocol):
    """The other members of this node's cache."""

    @property
    def view(self) -> View: ...

    async def ask(self, command: Command, only: str | None = None) -> Sequence[tuple[str, CommandAnswer | None]]:
        """The answer of each other member of the ring that is there, with its name; None: it gave none. `only`: ask
        this one alone. The sender is filled in."""
        ...
