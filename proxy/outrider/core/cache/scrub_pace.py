"""How fast the scrubber walks: slowly enough that readers have the disk, and a small cache is not read all day."""

from __future__ import annotations

from dataclasses import dataclass

# Of blocks that were verified before. A cache that is read through in less time waits for the rest of it: rot is rare.
ROUND_S = 3600.0


@dataclass(frozen=True, slots=True)
class ScrubPace:
    """At most `bytes_per_s` are read."""

    bytes_per_s: float
    round_s: float

    def pause_s(self, block_bytes: int, took_s: float, round_bytes: int | None) -> float:
        """How long to wait after a block of `block_bytes`, whose check took `took_s`.

        `round_bytes`: what the whole round will read; None: these blocks have never been verified, so they are not
        spread over `round_s`.
        """
        at_least_s = block_bytes / self.bytes_per_s
        if round_bytes is not None:
            at_least_s = max(at_least_s, self.round_s * block_bytes / max(round_bytes, block_bytes))
        return max(0.0, at_least_s - took_s)
