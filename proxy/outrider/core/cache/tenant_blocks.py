"""The blocks that each tenant has in the cache, and evictions by their shares of it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from outrider.core.block_layout import BlockLayout
from outrider.core.cache.policies import EvictionPolicy
from outrider.core.cache.tenants import NOBODY, Tenants
from outrider.core.model import BlockKey, ObjectRef, ObjectVersion

# The other policy's order is looked at until so many blocks of tenants within their shares were passed by. After that
# the blocks of those beyond theirs go, those of the least recently read object first: an eviction takes no longer.
_PASSED = 256


@dataclass(slots=True)
class _CountedVersion:
    """The blocks here of one version of an object of so many bytes (`size`), all of which count for `tenant`. Bit `i`
    of `blocks` stands for block `i`. `bytes`: those on disk."""

    tenant: str
    size: int
    blocks: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Account:
    """The versions that count for one tenant, by version id, the least recently read first, and their bytes on disk."""

    versions: OrderedDict[bytes, _CountedVersion] = field(default_factory=OrderedDict)
    bytes: int = 0


class TenantBlocks:
    """An eviction policy around another one. While a tenant has more than its share of the cache, blocks of tenants
    within their shares are the last victims. All others go in the order of the other policy.

    An object counts for the tenant that read it first. It passes to another one that reads it and is within a share,
    when the first has none or has more than it: who reads much takes nobody's data along. Nothing is kept of objects
    that no tenant is known to read, nor of any while no tenant has a share of the cache.
    """

    def __init__(
        self, policy: EvictionPolicy, tenants: Tenants, capacity_bytes: int, layout: BlockLayout,
        disk_bytes: Callable[[int], int], has: Callable[[BlockKey], bool],
    ) -> None:  # fmt: skip
        """`policy` is notified of all blocks. `disk_bytes`: how much of the capacity a block of so many bytes takes.
        `has`: whether a block is cached."""
        self.tenants = tenants
        self._policy = policy
        self._capacity_bytes = capacity_bytes
        self._layout = layout
        self._disk_bytes = disk_bytes
        self._has = has
        self._held: dict[bytes, _CountedVersion] = {}
        self._accounts: dict[str, _Account] = {}
        # Bytes that are reserved for blocks on their way, by version id.
        self._reserved: dict[bytes, tuple[ObjectRef, int]] = {}

    def bytes_of(self, tenant: str) -> int:
        """The bytes in the cache that count for `tenant`."""
        account = self._accounts.get(tenant)
        return 0 if account is None else account.bytes

    def read_by(self, tenant: str, version: ObjectVersion) -> None:
        """`tenant` reads the object. Also before the first block of it is here."""
        is_new = self.tenants.read(tenant, version.ref)
        if not self.tenants.have_cache_shares:
            return
        version_id = self._layout.version_id(version)
        held = self._held.get(version_id)
        if held is None:
            if is_new:
                self._hold(version_id, version, tenant)
        elif held.tenant != tenant and self._passes_to(tenant, held):
            self._move(version_id, held, tenant)

    def reserved(self, block: BlockKey, version: ObjectVersion, count: int) -> None:
        """So many bytes are reserved for a block on its way, or no longer if `count` is negative: it was `added` then,
        or will not come."""
        _, before = self._reserved.pop(block.version_id, (version.ref, 0))
        if before + count > 0:
            self._reserved[block.version_id] = version.ref, before + count

    def added(self, block: BlockKey, version: ObjectVersion) -> None:
        self._policy.added(block, version)
        if not self.tenants.have_cache_shares:
            # Blocks that come now would be missing, were there shares again.
            self._held.clear()
            self._accounts.clear()
        elif (held := self._held.get(block.version_id)) is not None:
            self._add(held, block.index)
        elif (tenant := self.tenants.reader_of(version.ref)) != NOBODY:
            self._hold(block.version_id, version, tenant)

    def read(self, block: BlockKey) -> None:
        held = self._held.get(block.version_id)
        if held is not None:
            self._accounts[held.tenant].versions.move_to_end(block.version_id)
        self._policy.read(block)

    def removed(self, block: BlockKey) -> None:
        held = self._held.get(block.version_id)
        if held is not None and held.blocks >> block.index & 1:
            held.blocks ^= 1 << block.index
            self._count(held, -self._bytes_of(held, block.index))
            if not held.blocks:
                del self._held[block.version_id], self._accounts[held.tenant].versions[block.version_id]
        self._policy.removed(block)

    def victims(self, incoming: BlockKey | None = None, version: ObjectVersion | None = None) -> Iterator[BlockKey]:
        order = self._policy.victims(incoming, version)
        if not self.tenants.have_cache_shares:
            return order
        has = Counter({name: account.bytes for name, account in self._accounts.items()})
        for version_id, (ref, count) in self._reserved.items():
            has[self._counts_for(version_id, ref)] += count
        reader = NOBODY
        if incoming is not None and version is not None:
            reader = self._counts_for(incoming.version_id, version.ref)
            # A tenant that has nothing may have a block, however small its share is.
            if has[reader] > 0:
                has[reader] += self._disk_bytes(self._layout.extent(incoming.index, version.size).length)
        over = [name for name, count in has.items() if self._is_beyond(name, count)]
        return self._in_turn(order, over, reader) if over else order

    def _counts_for(self, version_id: bytes, ref: ObjectRef) -> str:
        held = self._held.get(version_id)
        return self.tenants.reader_of(ref) if held is None else held.tenant

    def _in_turn(self, order: Iterator[BlockKey], over: list[str], reader: str) -> Iterator[BlockKey]:
        """`over`: the tenants that have more than their shares. `reader`: that of the incoming block."""
        passed: list[BlockKey] = []
        found: set[BlockKey] = set()
        block = None
        while len(passed) < _PASSED and (block := next(order, None)) is not None:
            tenant = self._tenant_of(block)
            if tenant not in over and self._share_of(tenant) is not None:
                passed.append(block)
            else:
                found.add(block)
                yield block
        if block is None and reader in over:
            # The other policy would keep the rest of this tenant's blocks before the incoming one, which then is not
            # worth the block of another tenant either.
            return
        yield from (block for name in over for block in self._blocks_of(name) if block not in found)
        yield from (block for block in chain(passed, order) if self._tenant_of(block) not in over)

    def _share_of(self, tenant: str) -> float | None:
        share = self.tenants.shares.get(tenant)
        return None if share is None else share.cache

    def _is_beyond(self, tenant: str, count: int) -> bool:
        """Whether so many bytes are more than the tenant's share."""
        share = self._share_of(tenant)
        return share is not None and count > share * self._capacity_bytes

    def _passes_to(self, tenant: str, held: _CountedVersion) -> bool:
        if self._share_of(tenant) is None:
            return False
        if self._is_beyond(tenant, self.bytes_of(tenant) + held.bytes):
            return False
        return self._share_of(held.tenant) is None or self._is_beyond(held.tenant, self.bytes_of(held.tenant))

    def _tenant_of(self, block: BlockKey) -> str:
        held = self._held.get(block.version_id)
        return NOBODY if held is None else held.tenant

    def _blocks_of(self, tenant: str) -> Iterator[BlockKey]:
        for version_id, held in self._accounts.get(tenant, _Account()).versions.items():
            blocks = held.blocks
            while blocks:
                lowest = blocks & -blocks
                blocks ^= lowest
                yield BlockKey(version_id, lowest.bit_length() - 1)

    def _hold(self, version_id: bytes, version: ObjectVersion, tenant: str) -> None:
        """The blocks of the version that are here count for `tenant` from now on."""
        here = [i for i in range(self._layout.count(version.size)) if self._has(BlockKey(version_id, i))]
        if here:
            held = self._held[version_id] = _CountedVersion(tenant, version.size)
            self._accounts.setdefault(tenant, _Account()).versions[version_id] = held
            for index in here:
                self._add(held, index)

    def _move(self, version_id: bytes, held: _CountedVersion, tenant: str) -> None:
        before, now = self._accounts[held.tenant], self._accounts.setdefault(tenant, _Account())
        now.versions[version_id] = before.versions.pop(version_id)
        before.bytes -= held.bytes
        now.bytes += held.bytes
        held.tenant = tenant

    def _add(self, held: _CountedVersion, index: int) -> None:
        if not held.blocks >> index & 1:
            held.blocks |= 1 << index
            self._count(held, self._bytes_of(held, index))

    def _bytes_of(self, held: _CountedVersion, index: int) -> int:
        return self._disk_bytes(self._layout.extent(index, held.size).length)

    def _count(self, held: _CountedVersion, count: int) -> None:
        held.bytes += count
        self._accounts[held.tenant].bytes += count
