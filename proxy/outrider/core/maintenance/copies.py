"""How many members of a cluster keep a copy of each block of a warm-up: 1, the owner alone; 0, each member."""

from __future__ import annotations

ALL = 0


def parse_copies(text: str) -> int:
    """Raises ValueError: neither `all` nor a number from 1 on."""
    if text == "all":
        return ALL
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:7]) < 10**6:
        raise ValueError(f"{text[:40]!r} is neither all nor a number of copies, like 2")
    return int(text)


def in_words(copies: int) -> str:
    """The text that `parse_copies` reads."""
    return str(copies) if copies else "all"


def too_many(copies: int, members: int) -> str | None:
    """A sentence about more copies than there are members; None: there are enough."""
    if copies <= members:
        return None
    if members == 1:
        return f"{copies} copies are wanted, and this cache is alone: it keeps one"
    return f"{copies} copies are wanted, and there are {members} members: each of them keeps one"


def before_0_3(member: str) -> str:
    """A sentence about a member that does not know of copies."""
    return f"{member} is older than 0.3: it keeps the blocks that it owns, and no copies of others"
