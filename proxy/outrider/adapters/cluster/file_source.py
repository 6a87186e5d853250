"""The members that a file lists, one in a line: `HOST:PORT [name=NAME] [zone=ZONE] [weight=SIZE]`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from outrider.adapters.cluster.member_lists import Outages, SourceUnreachable, polled
from outrider.adapters.process.file_reload import Sleep
from outrider.core.cluster.member import ListedMember
from outrider.core.origin.backoff import Backoff
from outrider.settings.members import is_member_name, reachable_address
from outrider.settings.values import parse_bytes

# A corrected file counts at once.
FILE_BACKOFF = Backoff(base_s=1.0, cap_s=1.0)
_EVERY_S = 1.0
# 10,000 long lines.
_BYTES_MAX = 4 * 2**20


class FileSource:
    """The file is read once a second. A look at its date would not do: network file systems keep dates for a minute,
    and two changes within one tick of the clock have the same. A file with a wrong line is no list."""

    def __init__(self, path: Path, outages: Outages, *, sleep: Sleep = asyncio.sleep) -> None:
        self._path = path
        self._outages = outages
        self._sleep = sleep
        self._known: tuple[bytes, list[ListedMember]] = (b"", [])

    def lists(self) -> AsyncGenerator[Sequence[ListedMember], None]:
        return polled(self._ask, self._outages, self._sleep, _EVERY_S)

    async def _ask(self) -> list[ListedMember]:
        # In a thread: a shared file system may hang.
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[ListedMember]:
        try:
            with self._path.open("rb") as file:
                content = file.read(_BYTES_MAX + 1)
        except OSError as error:
            raise SourceUnreachable(f"{self._path}: {error.strerror}") from error
        if len(content) > _BYTES_MAX:
            raise SourceUnreachable(f"{self._path}: is longer than {_BYTES_MAX} bytes")
        if content != self._known[0]:
            self._known = content, parse(content, str(self._path))
        return self._known[1]


def parse(content: bytes, path: str) -> list[ListedMember]:
    """The entries of a file. `#` at the begin of a line or of a word begins a comment.

    Raises:
        SourceUnreachable: a line is wrong; the message has its number.
    """
    found: list[ListedMember] = []
    lines = content.decode("utf-8", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        words = line.split()
        comment = next((place for place, word in enumerate(words) if word.startswith("#")), len(words))
        if words[:comment]:
            try:
                found.append(_entry(words[:comment]))
            except ValueError as error:
                raise SourceUnreachable(f"{path}:{number}: {error}") from error
    names = [entry.name for entry in set(found) if entry.name]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceUnreachable(f"{path}: one name for two members: {', '.join(twice)}")
    return found


def _entry(words: list[str]) -> ListedMember:
    address, *rest = words
    facts: dict[str, str] = {}
    for word in rest:
        name, is_fact, value = word.partition("=")
        if not is_fact or name not in ("name", "zone", "weight"):
            raise ValueError(f"{word}: write HOST:PORT [name=NAME] [zone=ZONE] [weight=SIZE]")
        if name in facts:
            raise ValueError(f"{word}: {name} is given twice")
        if name != "weight" and not is_member_name(value):
            raise ValueError(f"{word}: must be letters, digits, dots, dashes and underscores")
        facts[name] = value
    try:
        reachable_address(address)
    except ValueError as error:
        raise ValueError(f"{address}: {error}") from error
    weight_bytes = parse_bytes(facts["weight"]) if "weight" in facts else 0
    return ListedMember(address, facts.get("name", ""), facts.get("zone", ""), weight_bytes)
