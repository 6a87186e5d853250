"""The samples that the streaming libraries write and read: each holds its number, and bytes that show their offset."""

from __future__ import annotations

import hashlib

SAMPLES = 40
SAMPLE_BYTES = 250_007


def sample(number: int) -> bytes:
    return (bytes(range(251)) * (SAMPLE_BYTES // 251 + 2))[number : number + SAMPLE_BYTES]


def lines() -> list[str]:
    """The lines that a reader of the whole dataset prints, in order."""
    return [f"{number} {hashlib.sha256(sample(number)).hexdigest()}" for number in range(SAMPLES)]
