"""Authorisation: the grants of a client key. A hit is authorised exactly as a miss is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from outrider.core.model import ObjectRef
from outrider.core.s3.operation import ForgetScope, Operation, is_bucket_name
from outrider.core.s3.reach import LIST_QUERY, Reach

_SLASHES = re.compile("/+")
_DOTS = frozenset((".", ".."))

# Stores answer for themselves under these paths, with other words than S3's: the admin APIs of MinIO and of Ceph
# (`rgw_admin_entry`) show and change users and their keys. Swift's API at Ceph (`rgw_swift_url_prefix`).
_NOT_BUCKETS = frozenset(("minio", "admin", "auth", "swift"))


class AccessLevel(Enum):
    """`WRITE` includes `READ`."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Grant:
    """Access to the keys that begin with `prefix` (a glob), in the buckets whose name matches the glob `bucket`.

    A glob without a colon covers no tenant's bucket (`tenant:bucket`), except `*` without a prefix, which covers
    everything. A path under which some store has no bucket but an API of its own (`/minio`, `/admin`) is covered by a
    glob that is this very name, or by `write` on everything.
    """

    bucket: str
    prefix: str
    access: AccessLevel

    def _gives(self, access: AccessLevel, bucket: str) -> bool:
        return (access is AccessLevel.READ or self.access is AccessLevel.WRITE) and self.touches_bucket(bucket)

    def covers_key(self, access: AccessLevel, bucket: str, key: str) -> bool:
        """Whether the grant covers `key`. For a LIST `key` is the listed prefix: each key under it then begins with the
        grant's prefix."""
        if not self.covers_key_as_written(access, bucket, key):
            return False
        # Some origins, and proxies before them, resolve dots in a path. The grant must cover each key that results, and
        # a path that leaves the bucket may lead to any other.
        return self.covers_service() or all(name is not None and self._begins(name) for name in _readings(key))

    def covers_key_as_written(self, access: AccessLevel, bucket: str, key: str) -> bool:
        """Whether the grant covers `key` at an origin that leaves the dots in a path as they are."""
        return self._gives(access, bucket) and self._begins(key)

    def _begins(self, key: str) -> bool:
        return not self.prefix or fnmatchcase(key, self.prefix + "*")

    def covers_bucket(self, access: AccessLevel, bucket: str) -> bool:
        """Whether the grant covers the bucket as a whole, which takes a grant without a prefix."""
        return self._gives(access, bucket) and self.prefix == ""

    def touches_bucket(self, bucket: str) -> bool:
        """Whether the grant lets the client learn that the bucket exists (HeadBucket, GetBucketLocation)."""
        if ":" in bucket and ":" not in self.bucket and not self.covers_service():
            return False
        if bucket in _NOT_BUCKETS and self.bucket != bucket and not self.covers_all_writes():
            return False
        return fnmatchcase(bucket, self.bucket)

    def covers_service(self) -> bool:
        """Whether the grant covers ListBuckets, which shows all bucket names: it takes a grant on all buckets."""
        return self.bucket == "*" and self.prefix == ""

    def covers_all_writes(self) -> bool:
        """Whether the grant covers whatever a request may ask for."""
        return self.covers_service() and self.access is AccessLevel.WRITE


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
    """A client key of the settings, with its grants. All clients of one `name` are one tenant."""

    name: str
    access_key: str
    grants: tuple[Grant, ...]
    is_anonymous: bool = False
    """The client of all unsigned requests. It has no key: `access_key` is empty. Its requests go to the origin unsigned
    and past the cache, since the proxy's own credentials may read more than the origin shows to everybody."""
    cache_share: float | None = None
    line_share: float | None = None
    """See `TenantShare`."""


def may_read(client: Client, ref: ObjectRef) -> bool:
    return any(grant.covers_key(AccessLevel.READ, ref.bucket, ref.key) for grant in client.grants)


def missing_grant(client: Client, operation: Operation, keys_in_body: Sequence[str] | None = None) -> str | None:
    """Why the grants of `client` do not cover all objects and buckets that `operation` touches, in a sentence for the
    client. None: they cover all.

    The sentence depends on the request and the grants alone, never on what the bucket has.

    `keys_in_body`: the keys of a DeleteObjects. None: they are not known, so it takes a grant on the whole bucket.
    """
    grants = client.grants
    for source in operation.sources:
        if (needed := _needed_for_source(grants, source, operation)) is not None:
            return _missing(needed)
    access = AccessLevel.READ if operation.method in ("GET", "HEAD") else AccessLevel.WRITE
    bucket = operation.bucket
    if operation.reach is not Reach.NAMED:
        return _missing_beyond_names(grants, access, operation)
    if bucket is None:
        return None if any(grant.covers_service() for grant in grants) else _missing("read all buckets")
    if operation.key:
        return _missing_for_keys(grants, access, bucket, [operation.key])
    if operation.forgets is ForgetScope.KEYS_IN_BODY and keys_in_body is not None:
        return _missing_for_keys(grants, access, bucket, keys_in_body)
    names = {name for name, _ in operation.query}
    if access is AccessLevel.READ and names <= {"location"} and (operation.method == "HEAD" or names):
        is_covered, needed = any(grant.touches_bucket(bucket) for grant in grants), f"read the bucket {bucket}"
        return None if is_covered else _missing(needed)
    if access is AccessLevel.READ and names <= LIST_QUERY:
        prefixes = [value for name, value in operation.query if name == "prefix"] or [""]
        return _missing_for_keys(grants, access, bucket, prefixes)
    if any(grant.covers_bucket(access, bucket) for grant in grants):
        return None
    return _missing(f"{access.value} the whole bucket {bucket}")


def _missing(needed: str) -> str:
    return f"No grant of this client covers the request: it takes a grant to {needed}."


def _missing_beyond_names(grants: Sequence[Grant], access: AccessLevel, operation: Operation) -> str | None:
    bucket = operation.bucket
    if any(grant.covers_all_writes() for grant in grants):
        return None
    if operation.reach is Reach.SERVICE or bucket is None:
        return f"{operation.reaches_by} may reach anything at the origin: it takes a grant to write all buckets."
    if any(grant.covers_bucket(access, bucket) for grant in grants):
        return None
    return f"{operation.reaches_by} reaches other keys: it takes a grant to {access.value} the whole bucket."


def _missing_for_keys(grants: Sequence[Grant], access: AccessLevel, bucket: str, keys: Iterable[str]) -> str | None:
    for key in keys:
        if any(grant.covers_key(access, bucket, key) for grant in grants):
            continue
        if not any(grant.covers_key_as_written(access, bucket, key) for grant in grants):
            return _missing(f"{access.value} {ObjectRef(bucket, key)}")
        return "Servers differ in how they resolve the dots in a key, and no grant covers each key that may result."
    return None


def _needed_for_source(grants: Sequence[Grant], source: ObjectRef, operation: Operation) -> str | None:
    """The access that copying from `source` takes beyond `grants`; None: none."""
    access = AccessLevel.WRITE if operation.renames else AccessLevel.READ
    if not is_bucket_name(source.bucket):
        # `arn:...`, `//bucket`: only the origin knows which objects such a name means.
        is_covered = any(grant.covers_service() and grant.access in (access, AccessLevel.WRITE) for grant in grants)
        return None if is_covered else f"{access.value} all buckets"
    is_covered = any(grant.covers_key(access, source.bucket, source.key) for grant in grants)
    return None if is_covered else f"{access.value} {source}"
