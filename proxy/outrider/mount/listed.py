"""LISTs are hints. The object itself says which version a file has: when a LIST may be shown, and what follows where a
HEAD says otherwise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from enum import Enum
from typing import NamedTuple

# So many objects of a kind must be as listed before a LIST is believed of the kind.
_PROOFS = 4


class ObjectFacts(NamedTuple):
    """An object as a HEAD or a LIST describes it. `size`: -1 where none was stated. `etag` has no quotes, and is empty
    where none was stated. `seconds`: the time of its upload since 1970; 0: not stated."""

    size: int
    etag: str
    seconds: int

    @classmethod
    def of(cls, size: int, etag: str, modified: datetime | None) -> ObjectFacts:
        return cls(size, etag.strip('"'), 0 if modified is None else int(modified.timestamp()))

    def is_version(self, other: ObjectFacts) -> bool:
        """Whether both are of one version (`core.model.VersionIdentity`), as far as both state it. Without an ETag,
        both must state the date."""
        if self.size != other.size and self.size >= 0 and other.size >= 0:
            return False
        if self.etag and other.etag:
            return self.etag == other.etag and (self.seconds == other.seconds or 0 in (self.seconds, other.seconds))
        return self.seconds == other.seconds


class FileVersion(NamedTuple):
    """Replies to the GETs of a file must have this version. `is_settled`: the object said so, and not a LIST alone.
    `seconds`: see `ObjectFacts`."""

    size: int
    etag: str
    is_settled: bool
    seconds: int = 0

    def may_be(self, facts: ObjectFacts) -> bool:
        """Whether a reply that states this brings the version."""
        size, etag, seconds = facts
        if (size >= 0 and size != self.size) or (etag and self.etag and etag != self.etag):
            return False
        if seconds and self.seconds and seconds != self.seconds:
            return False
        # A reply that proves nothing will do where the object has shown this version before.
        return self.is_settled or (size >= 0 and etag == self.etag != "")


class SettleVerdict(Enum):
    SAME = "the object is as it was known"
    MISSTATED = "the LIST stated something else of this very upload"
    CHANGED = "another version took its place"


def verdict(known: ObjectFacts, found: ObjectFacts, *, is_settled: bool) -> SettleVerdict:
    """A HEAD shows `found` of a file that is known as `known`. `is_settled`: the object said so before;
    False: a LIST did, and no byte was read by it."""
    if known.is_version(found):
        return SettleVerdict.SAME
    is_one_upload = known.seconds == found.seconds or not (known.seconds and found.seconds)
    return SettleVerdict.MISSTATED if is_one_upload and not is_settled else SettleVerdict.CHANGED


class ListTrust:
    """Whether the sizes that LISTs state may be shown to programs. One that was wrong once is not believed again."""

    def __init__(self) -> None:
        self._proofs: Counter[tuple[bool, int]] = Counter()
        self.is_lost = False

    def believes(self, listed: ObjectFacts) -> bool:
        """Sizes of 0 never: where one is wrong, the kernel would not even begin to read. Nor where no ETag could show
        that the object has changed."""
        return not self.is_lost and listed.size > 0 and listed.etag != "" and self._proofs[_kind(listed)] >= _PROOFS

    def unproved(self, listed: Iterable[ObjectFacts]) -> list[int]:
        """The places in `listed` of objects that, if they are as listed, prove all its kinds that can be proved."""
        if self.is_lost:
            return []
        proofs, places = self._proofs.copy(), []
        for place, facts in enumerate(listed):
            if facts.size > 0 and facts.etag and proofs[_kind(facts)] < _PROOFS:
                proofs[_kind(facts)] += 1
                places.append(place)
        return places

    def confirm(self, listed: ObjectFacts) -> None:
        """The object is as it was listed. One without a size or an ETag proves nothing of those that have them."""
        if listed.size > 0 and listed.etag:
            self._proofs[_kind(listed)] += 1

    def lose(self) -> None:
        self.is_lost = True


def _kind(listed: ObjectFacts) -> tuple[bool, int]:
    """Stores that list wrong sizes do so for a kind of objects: uploads in parts (AWS's ETag of these has a hyphen), or
    those that are large enough to be compressed."""
    return "-" in listed.etag, listed.size.bit_length()
