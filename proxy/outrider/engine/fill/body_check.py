"""The check of one body that brings a whole object: it is hashed as it passes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from outrider.core.cache.block_file import BlockMeta
from outrider.core.s3.checksums import ContentProof
from outrider.ports import Buffer


class Judgement(Enum):
    """The result of a `BodyCheck`."""

    OPEN = "nothing is known, or not yet"
    RIGHT = "the bytes are those that the bucket has"
    RELAYED = "they are not, for the second time: readers may have them, the cache may not"


class BodyCheck:
    """The check of one body that brings a whole object."""

    def __init__(
        self, meta: BlockMeta, proof: ContentProof, judge: Callable[[BlockMeta, ContentProof, bytes], Judgement],
        *, held_bytes_max: int,
    ) -> None:  # fmt: skip
        """`held_bytes_max`: the bytes of an object up to this size come as a whole."""
        self._left = meta.extent.length
        self._is_held = self._left <= held_bytes_max
        self._meta = meta
        self._proof = proof
        self._judge = judge
        self._hash = proof.kind.begin()
        self._held: list[Buffer] = []
        self.judgement = Judgement.OPEN

    def released(self, piece: Buffer) -> list[Buffer]:
        """The next bytes of the body. Returns those that may be handed out now: the last ones if the body is right, and
        those of a small body with its last.

        Raises ContentMismatch: the body is not that of the object; another try may bring it.
        """
        self._hash.update(piece)
        self._left -= len(piece)
        if self._left == 0:
            self.judgement = self._judge(self._meta, self._proof, self._hash.digest())
        elif self._is_held:
            self._held.append(piece)
            return []
        held, self._held = self._held, []
        return [*held, piece]
