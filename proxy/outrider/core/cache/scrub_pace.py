"""The pace of the scrubber: slow enough to leave the disk to readers, and not to read a small cache all day."""

from __future__ import annotations

from dataclasses import dataclass

# The least time of a round over blocks that were verified before. Bit rot is rare, so a small cache waits.
ROUND_S = 3600.0


@dataclass(frozen=True, slots=True)
class ScrubPace:
    """At most `bytes_per_s` are read, and a round over verified blocks takes at least `round_s`."""

    bytes_per_s: float
    round_s: float

    def pause_s(self, block_bytes: int, took_s: float, round_bytes: int | None) -> float:
        """The pause after a block of `block_bytes` whose check took `took_s`.

        `round_bytes`: the bytes of the whole round. None: the blocks of this round were never verified, so they are not
        spread over `round_s`.
        """
        at_least_s = block_bytes / self.bytes_per_s
        if round_bytes is not None:
            at_least_s = max(at_least_s, self.round_s * block_bytes / max(round_bytes, block_bytes))
        return max(0.0, at_least_s - took_s)
