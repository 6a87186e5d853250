"""Authorisation: the grants of a client key. A hit is authorised exactly as a miss is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from outrider.core.model import ObjectRef
from outrider.core.s3.operation import LIST_QUERY, Forgets, Operation, is_bucket_name

_SLASHES = re.compile("/+")
_DOTS = frozenset((".", ".."))


class AccessLevel(Enum):
    """`WRITE` includes `READ`."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Grant:
    """Access to the keys that begin with `prefix` (a glob), in the buckets whose name matches the glob `bucket`.

    A glob without a colon covers no tenant's bucket (`tenant:bucket`), except `*` without a prefix, which covers
    everything.
    """

    bucket: str
    prefix: str
    access: AccessLevel

    def _gives(self, access: AccessLevel, bucket: str) -> bool:
        return (access is AccessLevel.READ or self.access is AccessLevel.WRITE) and self.touches_bucket(bucket)

    def covers_key(self, access: AccessLevel, bucket: str, key: str) -> bool:
        """Whether the grant covers `key`. For a LIST `key` is the listed prefix: each key under it then begins with the
        grant's prefix."""
        if not self._gives(access, bucket):
            return False
        # Some origins, and proxies before them, resolve dots in a path. The grant must cover each key that results.
        return all(name is not None and self._begins(name) for name in _readings(key))

    def _begins(self, key: str) -> bool:
        return not self.prefix or fnmatchcase(key, self.prefix + "*")

    def covers_bucket(self, access: AccessLevel, bucket: str) -> bool:
        """Whether the grant covers the bucket as a whole, which takes a grant without a prefix."""
        return self._gives(access, bucket) and self.prefix == ""

    def touches_bucket(self, bucket: str) -> bool:
        """Whether the grant lets the client learn that the bucket exists (HeadBucket, GetBucketLocation)."""
        if ":" in bucket and ":" not in self.bucket and not self.covers_service():
            return False
        return fnmatchcase(bucket, self.bucket)

    def covers_service(self) -> bool:
        """Whether the grant covers ListBuckets, which shows all bucket names: it takes a grant on all buckets."""
        return self.bucket == "*" and self.prefix == ""


def _readings(key: str) -> set[str | None]:
    """`key`, and the keys that an origin may read a path of that name as: with `.` and `..` resolved, before or after
    doubled slashes were merged, and with or without backslashes as slashes. None: such a path leaves the bucket."""
    if "." not in key:
        return {key}
    paths = {key, key.replace("\\", "/")}
    paths |= {_SLASHES.sub("/", path).removeprefix("/") for path in paths}
    return {key} | {_without_dots(path) for path in paths if not _DOTS.isdisjoint(path.split("/"))}


def _without_dots(path: str) -> str | None:
    segments = path.split("/")
    resolved: list[str] = []
    for segment in segments:
        if segment == "..":
            if not resolved:
                return None
            resolved.pop()
        elif segment != ".":
            resolved.append(segment)
    return "/".join(resolved)


@dataclass(frozen=True, slots=True)
class Client:
    """A client key of the settings, with its grants."""

    name: str
    access_key: str
    grants: tuple[Grant, ...]
    is_anonymous: bool = False
    """The client of all unsigned requests. It has no key: `access_key` is empty. Its requests go to the origin unsigned
    and past the cache, since the proxy's own credentials may read more than the origin shows to everybody."""


def may_read(client: Client, ref: ObjectRef) -> bool:
    return any(grant.covers_key(AccessLevel.READ, ref.bucket, ref.key) for grant in client.grants)


def allowed(client: Client, operation: Operation, keys_in_body: Sequence[str] | None = None) -> bool:
    """Whether the grants of `client` cover all objects and buckets that `operation` touches.

    `keys_in_body`: the keys of a DeleteObjects. None: they are not known, so it takes a grant on the whole bucket.
    """
    grants = client.grants
    access = AccessLevel.READ if operation.method in ("GET", "HEAD") else AccessLevel.WRITE
    if not all(_covers_source(grants, source, operation) for source in operation.sources):
        return False
    bucket = operation.bucket
    if bucket is None:
        return any(grant.covers_service() for grant in grants)
    if operation.key:
        return any(grant.covers_key(access, bucket, operation.key) for grant in grants)
    if operation.forgets is Forgets.KEYS_IN_BODY and keys_in_body is not None:
        return all(any(grant.covers_key(access, bucket, key) for grant in grants) for key in keys_in_body)
    names = {name for name, _ in operation.query}
    if access is AccessLevel.READ and names <= {"location"} and (operation.method == "HEAD" or names):
        return any(grant.touches_bucket(bucket) for grant in grants)
    if access is AccessLevel.READ and names <= LIST_QUERY:
        prefixes = [value for name, value in operation.query if name == "prefix"] or [""]
        return all(any(grant.covers_key(access, bucket, prefix) for grant in grants) for prefix in prefixes)
    return any(grant.covers_bucket(access, bucket) for grant in grants)


def _covers_source(grants: Sequence[Grant], source: ObjectRef, operation: Operation) -> bool:
    access = AccessLevel.WRITE if operation.renames else AccessLevel.READ
    if not is_bucket_name(source.bucket):
        # `arn:...`, `//bucket`: only the origin knows which objects such a name means.
        return any(grant.covers_service() and grant.access in (access, AccessLevel.WRITE) for grant in grants)
    return any(grant.covers_key(access, source.bucket, source.key) for grant in grants)
