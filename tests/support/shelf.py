"""Objects whose every byte is known, and readers that report the result of each read: for fault-injection tests."""

from __future__ import annotations

import http.client
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.rawhttp import RawConnection

if TYPE_CHECKING:
    from tests.support.bucket import Bucket

KIB = 1024
RIGHT = "the right bytes"
BROKEN = "a broken connection"


@dataclass(frozen=True, slots=True)
class Shelf:
    """Objects `NAME/0`, `NAME/1`, ... in a bucket. No two blocks of them are alike."""

    name: str
    objects: dict[str, bytes]

    @classmethod
    def make(cls, bucket: Bucket, name: str, count: int, size: int = 256 * KIB) -> Shelf:
        chance = random.Random(name)
        shelf = cls(name, {str(i): chance.randbytes(size) for i in range(count)})
        bucket.make_bucket(name)
        client = bucket.client()
        for key, data in shelf.objects.items():
            client.put_object(Bucket=name, Key=key, Body=data)
        client.close()
        return shelf

    def read(self, connection: RawConnection, key: str, start: int = 0, stop: int | None = None) -> str:
        """The result of a read of bytes `[start, stop)`: RIGHT, BROKEN (also when the body is shorter than announced),
        or the status.

        Raises:
            WrongBytes: the body has other bytes, which must never happen.
        """
        whole = self.objects[key]
        wanted = whole[start : len(whole) if stop is None else stop]
        headers = [] if (start, stop) == (0, None) else [("range", f"bytes={start}-{start + len(wanted) - 1}")]
        try:
            answer = connection.ask("GET", f"/{self.name}/{key}", headers)
        except (OSError, http.client.HTTPException):
            return BROKEN
        if answer.status not in (200, 206):
            return f"status {answer.status}"
        if answer.body != wanted:
            raise WrongBytes(f"{self.name}/{key}: {len(answer.body)} of {len(wanted)} bytes, or wrong ones")
        return RIGHT

    def read_any(self, connection: RawConnection, chance: random.Random) -> str:
        """A random object, whole or a part of it."""
        key = chance.choice(list(self.objects))
        size = len(self.objects[key])
        if chance.random() < 0.5:
            return self.read(connection, key)
        start = chance.randrange(size)
        return self.read(connection, key, start, chance.randint(start + 1, size))

    def read_all(self, address: tuple[str, int]) -> str:
        """RIGHT, or the first other result."""
        with RawConnection(address) as connection:
            for key in self.objects:
                if (saw := self.read(connection, key)) != RIGHT:
                    return saw
        return RIGHT


class WrongBytes(AssertionError):
    """A client got other bytes than the object has, and had no means to notice."""
