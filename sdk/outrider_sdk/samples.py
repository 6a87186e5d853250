"""A map-style dataset of objects, whose batches are one request each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outrider_sdk.batch import Key
from outrider_sdk.client import Client


class BatchedObjects:
    """Sample number i is the object `keys[i]`, or a range of one (see `batch.Key`), decoded by `decode`.

    A `DataLoader` calls `__getitems__` with the indices of a batch. It reaches the workers, forked or spawned, with the
    client, and each of them has connections of its own. `url` is for `AnnouncingSampler`.
    """

    def __init__(
        self, bucket: str, keys: Sequence[Key], decode: Callable[[str, bytes], Any] | None = None,
        *, client: Client | None = None,
    ) -> None:  # fmt: skip
        """`decode` makes a sample of key and bytes; None: the bytes are the sample. `client` None: the proxy that the
        environment names."""
        self._bucket = bucket
        self._keys = keys
        self._decode = decode
        self._client = Client() if client is None else client

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> Any:
        """Raises what `__getitems__` raises."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Raises ObjectError: an object could not be read; and the errors of `Client.get_batch`."""
        samples = []
        for key, content in self._client.get_batch(self._bucket, [self._keys[index] for index in indices]):
            if not isinstance(content, bytes):
                raise content
            samples.append(content if self._decode is None else self._decode(_name(key), content))
        return samples

    def url(self, index: int) -> str:
        """The URL of the sample's object."""
        return f"s3://{self._bucket}/{_name(self._keys[index])}"


def _name(key: Key) -> str:
    return key if isinstance(key, str) else key[0]
