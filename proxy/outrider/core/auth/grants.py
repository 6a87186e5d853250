"""Who may do what: the grants of a client key. A hit is authorised exactly like a miss."""

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
    """Objects of buckets that match the glob `bucket`, with keys that begin with `prefix` (itself a glob)."""

    bucket: str
    prefix: str
    access: AccessLevel

    def _gives(self, access: AccessLevel, bucket: str) -> bool:
        return (access is AccessLevel.READ or self.access is AccessLevel.WRITE) and fnmatchcase(bucket, self.bucket)

    def covers_key(self, access: AccessLevel, bucket: str, key: str) -> bool:
        """Also for LIST, with the listed prefix as `key`: every key under it then begins with the grant's prefix."""
        if not self._gives(access, bucket):
            return False
        # Some origins, and proxies before them, resolve dots in a path: the key must be covered in each reading.
        return all(name is not None and self._begins(name) for name in _readings(key))

    def _begins(self, key: str) -> bool:
        return not self.prefix or fnmatchcase(key, self.prefix + "*")

    def covers_bucket(self, access: AccessLevel, bucket: str) -> bool:
        """The bucket as a whole: only a grant without a prefix reaches that far."""
        return self._gives(access, bucket) and self.prefix == ""

    def touches_bucket(self, bucket: str) -> bool:
        """Enough to learn that the bucket is there (HeadBucket, GetBucketLocation)."""
        return fnmatchcase(bucket, self.bucket)

    def covers_service(self) -> bool:
        """ListBuckets tells all names, so it takes a grant on all of them."""
        return self.bucket == "*" and self.prefix == ""


def _readings(key: str) -> set[str | None]:
    """`key`, and what a path of that name may be taken for: with its `.` and `..` resolved, after doubled slashes were
    made one or before, with backslashes for slashes or not. None: it leaves the bucket."""
    if "." not in key:
        return {key}
    paths = {key, key.replace("\\", "/")}
    paths |= {_SLASHES.sub("/", path).removeprefix("/") for path in paths}
    return {key} | {_without_dots(path) for path in paths if not _DOTS.isdisjoint(path.split("/"))}


def _without_dots(path: str) -> str | None:
    segments = path.split("/")
    cached: list[str] = []
    for segment in segments:
        if segment == "..":
            if not cached:
                return None
            cached.pop()
        elif segment != ".":
            cached.append(segment)
    return "/".join(cached)


@dataclass(frozen=True, slots=True)
class Client:
    """One client key of the settings."""

    name: str
    access_key: str
    grants: tuple[Grant, ...]


def may_read(client: Client, ref: ObjectRef) -> bool:
    return any(grant.covers_key(AccessLevel.READ, ref.bucket, ref.key) for grant in client.grants)


def allowed(client: Client, operation: Operation, keys_in_body: Sequence[str] | None = None) -> bool:
    """Whether the grants of `client` cover all that `operation` touches.

    `keys_in_body`: those of a DeleteObjects; None: not known, so it takes a grant on the whole bucket.
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
        # `arn:...`, `tenant:bucket`, `//bucket`: which objects that names, the origin alone knows.
        return any(grant.covers_service() and grant.access in (access, AccessLevel.WRITE) for grant in grants)
    return any(grant.covers_key(access, source.bucket, source.key) for grant in grants)
