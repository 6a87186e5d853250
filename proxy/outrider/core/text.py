"""Counts and sizes as people read them."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def counted(count: int, noun: str) -> str:
    """1 object, 2 objects."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def part_of(count: int, whole: int, noun: str) -> str:
    """2 of 3 objects, none of 3 objects; no object, if the whole is nothing."""
    return f"{count or 'none'} of {counted(whole, noun)}" if whole else f"no {noun}"


def in_words(count_bytes: float) -> str:
    """1.9 GB: three digits at most, units by powers of 1,000."""
    if count_bytes < 0:
        return f"-{in_words(-count_bytes)}"
    amount = float(count_bytes)
    for unit in _UNITS:
        if amount < 999.5 or unit == _UNITS[-1]:
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"
