"""The tenants of one proxy: their shares of the cache and of the line, and which of them reads an object.

A tenant is all clients of one name. The empty name stands for nobody: no tenant is known to read the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outrider.core.memo import Memo
from outrider.core.model import ObjectRef

NOBODY = ""
# Objects and folders whose last reader is remembered.
_OBJECTS_MAX, _FOLDERS_MAX = 16_384, 4096
# Tenants without a share of the line are not starved where the shares of the others are the whole line.
_LEAST_WEIGHT = 0.01


class TenantShare(NamedTuple):
    """Parts of the cache and of the line, above 0 and up to 1; None: the tenant has no such share."""

    cache: float | None = None
    line: float | None = None


class Tenants:
    """Called from one thread. The shares may add up to more than 1."""

    def __init__(self) -> None:
        self._objects: Memo[ObjectRef, str] = Memo(_OBJECTS_MAX)
        self._folders: Memo[tuple[str, str], str] = Memo(_FOLDERS_MAX)
        self.renew({})

    def renew(self, shares: Mapping[str, TenantShare]) -> None:
        """These are all tenants from now on, and their shares."""
        self.shares = shares
        self.have_cache_shares = any(share.cache is not None for share in shares.values())
        # The next read of each object is new: only from then on it may count for a tenant.
        self._objects.clear()
        given = [share.line for share in shares.values() if share.line is not None]
        # Tenants without a share of the line divide the rest of it, and so does work that nobody is known to read.
        without = len(shares) - len(given) + 1
        self._weight = max((1 - sum(given)) / without, _LEAST_WEIGHT)
        self._have_shares = any(share != TenantShare() for share in shares.values())

    def read(self, tenant: str, ref: ObjectRef) -> bool:
        """`tenant` reads the object. Returns whether that is new: it did not read the object last, as far as known."""
        is_new = self._objects.get(ref) != tenant
        self._objects.put(ref, tenant)
        self._folders.put(ref.folder, tenant)
        return is_new

    def expect(self, tenant: str, ref: ObjectRef) -> None:
        """The object is fetched because `tenant` asked for that."""
        if ref not in self._objects:
            self._objects.put(ref, tenant)

    def reader_of(self, ref: ObjectRef) -> str:
        """The tenant that read the object last, or another one in its folder: what is prefetched was read by nobody."""
        return self._objects.get(ref) or self._folders.get(ref.folder) or NOBODY

    def on_line(self, ref: ObjectRef) -> str:
        """The tenant for whom the object is fetched, as it stands in a line. See `in_line`."""
        return self.in_line(self.reader_of(ref))

    def in_line(self, tenant: str) -> str:
        """`tenant`; nobody: no tenant has any share, and all wait in one queue."""
        return tenant if self._have_shares else NOBODY

    def weight_of(self, tenant: str) -> float:
        """The tenant's part of the line, where all want it."""
        share = self.shares.get(tenant)
        return self._weight if share is None or share.line is None else share.line
