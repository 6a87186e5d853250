"""The owner of a block: weighted rendezvous hashing over the members of a ring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from outrider.core.cluster.member import Member
from outrider.core.memo import Memo
from outrider.core.model import ObjectRef
from outrider.core.rendezvous import Rendezvous

# All members place by the same numbers. Another text here means another ring, and another version of the wire.
_PERSON = b"outrider ring 1"
# The blocks that readers are at. An answer from the memo takes 0.15 us; a new one 4 us for 8 members, 46 us for 128.
_MEMO_BLOCKS = 4096


class Ring:
    """Members by which blocks are placed; at least one, each name once. Immutable, for any thread.

    See `Rendezvous`. Two rings are equal if names and weights are; addresses do not count, nor does the order of
    `members`.

    The shares of `n` blocks scatter as chance has it: of 5,000 blocks on 8 equal members the fullest one owns 1.056
    times the mean on average, and of 40,000 blocks 1.02 times.
    """

    __slots__ = ("_memo", "_places", "_rendezvous", "digest", "members")

    def __init__(self, members: Iterable[Member]) -> None:
        self.members: Sequence[Member] = tuple(sorted(members, key=lambda member: member.name))
        """By name."""
        if not self.members:
            raise ValueError("a ring has a member")
        self._places = {member.name: place for place, member in enumerate(self.members)}
        if len(self._places) < len(self.members):
            raise ValueError("two members of a ring have the same name")
        # A weight of 0 is that of a member that did not state its size: it owns next to nothing.
        self._rendezvous = Rendezvous(self._placed_by, _PERSON)
        self._memo: Memo[tuple[ObjectRef, int], Sequence[Member]] = Memo(_MEMO_BLOCKS)
        self.digest = _digest(self.members)
        """12 hex digits of the names and weights."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ring) and self._placed_by == other._placed_by

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Ring({', '.join(member.name for member in self.members)})"

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def distance(self, start: str, stop: str) -> int:
        """How many members `stop` stands after `start`, in the order of names and round. Raises KeyError: no member."""
        return (self._places[stop] - self._places[start]) % len(self.members)

    @property
    def _placed_by(self) -> list[tuple[str, int]]:
        return [(member.name, member.weight_bytes) for member in self.members]

    def owners(self, ref: ObjectRef, index: int) -> Sequence[Member]:
        """All members in the order in which they are to be asked for a block: its owner, then its successors."""
        found = self._memo.get((ref, index))
        if found is None:
            found = tuple([self.members[place] for place in self._rendezvous.order(_block_hash(ref, index))])
            self._memo.put((ref, index), found)
        return found

    def owner(self, ref: ObjectRef, index: int) -> Member:
        return self.owners(ref, index)[0]

    def authority(self, ref: ObjectRef) -> Member:
        """The member that knows the object's version."""
        return self.owners(ref, 0)[0]


def _block_hash(ref: ObjectRef, index: int) -> int:
    # The bucket is length-prefixed: with a separator, two names could share a hash by moving it.
    bucket, key = ref.bucket.encode("utf-8", "surrogateescape"), ref.key.encode("utf-8", "surrogateescape")
    raw = b"%d %d %b%b" % (index, len(bucket), bucket, key)
    return int.from_bytes(blake2b(raw, digest_size=16, person=_PERSON).digest(), "big")


def _digest(members: Sequence[Member]) -> str:
    digest = blake2b(digest_size=6, person=_PERSON)
    for member in members:
        name = member.name.encode("utf-8", "surrogateescape")
        digest.update(len(name).to_bytes(4, "big") + name + member.weight_bytes.to_bytes(16, "big"))
    return digest.hexdigest()
