"""All settings of `serve` and `run`, and the rules between them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, SecretStr

from outrider.core.auth.grants import Client
from outrider.core.cache.freshness import Freshness, shortest_under
from outrider.core.model import ObjectRef
from outrider.settings import members
from outrider.settings.clients_file import Clients, read_clients
from outrider.settings.values import (
    Address,
    Bytes,
    CacheSize,
    File,
    FreshnessText,
    SettingsError,
    Size,
    SizeOrShare,
    Words,
    endpoint,
    is_loopback,
    paths,
    token,
)


class _Rule(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FreshnessRule(_Rule):
    """`objects` is a glob over `bucket/key`."""

    objects: str
    freshness: FreshnessText


class PrefetchRule(_Rule):
    """`objects` is a glob over `bucket/key`."""

    objects: str
    prefetch: Literal["epoch", "object", "off"]


class ListCacheRule(_Rule):
    """LISTs of `bucket/prefix` that match the glob `prefixes` are kept for `ttl_s` seconds."""

    prefixes: str
    ttl_s: float = Field(gt=0)


# Settings that are lists of tables in the file. They cannot be given as flags or variables.
RULES: Mapping[str, type[BaseModel]] = {
    "freshness_rules": FreshnessRule, "prefetch_rules": PrefetchRule, "list_cache": ListCacheRule,
}  # fmt: skip


RETIRED: frozenset[str] = frozenset({"workers"})
"""Settings of earlier releases that have no effect any more. Flag, variable and file may still have them."""

# On all addresses: the other members are on other machines. Each request has to be signed with the cluster's key.
_PEER_LISTEN = "0.0.0.0:9482"


# More drives than a node has. Each has threads, and labels of metrics.
_DISKS_MAX = 64


def _default_cache_dir() -> tuple[Path]:
    base = os.environ.get("XDG_CACHE_HOME")
    return ((Path(base) if base else Path.home() / ".cache") / "outrider",)


class Settings(BaseModel):
    """The settings of `serve` and `run`. Sizes are bytes, `*_s` are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    origin: Annotated[str, AfterValidator(endpoint)] | None = Field(
        None, description="Endpoint of the origin; default: from the AWS environment or profile, else AWS S3's."
    )
    region: str | None = Field(
        None, description="Region to sign for; default: from the AWS environment or profile, else us-east-1."
    )
    listen: Address = Field(
        "127.0.0.1:9480", description="Address for S3 clients; `[::]:PORT`: all addresses, of IPv4 and of IPv6."
    )
    admin: Address = Field("127.0.0.1:9481", description="Address for health, metrics and status.")
    admin_token: Annotated[SecretStr | None, BeforeValidator(token)] = Field(
        None, description="Bearer token of the admin port; required off loopback."
    )
    cache_dir: Annotated[tuple[File, ...], BeforeValidator(paths)] = Field(
        default_factory=_default_cache_dir,
        min_length=1,
        max_length=_DISKS_MAX,
        description="Directory of the cache; `memory`: on the tmpfs. Several, one on each disk, are one cache: the "
        "flag again for each, a list in the file, commas in the variable.",
    )
    cache_size: CacheSize = Field(
        Size(share=0.8), description="Size of the cache on all its disks, in bytes or as a share of each file system."
    )
    min_free: SizeOrShare = Field(
        Size(share=0.05), description="Free space to leave on the file system, in bytes or as a share."
    )
    block_size: Bytes = Field(8 * 2**20, ge=64 * 2**10, le=2**30, multiple_of=4096, description="Size of a block.")
    auth: Literal["loopback", "sigv4"] = Field(
        "loopback", description="Access control: anybody on loopback, or signed requests of known clients."
    )
    clients: File | None = Field(
        None,
        description="TOML file with the keys and grants of clients, for `auth = sigv4`; read again when it changes.",
    )
    cross_site: bool = Field(
        False,
        description="Answer unsigned requests of web pages of other sites, as a bucket's CORS rules allow; "
        "in loopback mode under any Host.",
    )
    domain: Words = Field((), description="Domain for virtual-host style requests to BUCKET.DOMAIN.")
    tls_cert: File | None = Field(
        None, description="Certificate chain; the S3 port then serves https. Read again when it changes, as its key."
    )
    tls_key: File | None = Field(None, description="Private key of the certificate.")
    peers: Annotated[str, AfterValidator(members.peers)] | None = Field(
        None,
        description="Source of the members that are one cache together: kubernetes:NAMESPACE/SERVICE, dns:NAME:PORT, "
        "file:PATH or slurm; default: none, this node caches by itself.",
    )
    peer_listen: Address | None = Field(
        None, description="Address for the other members; default: 0.0.0.0:9482 with `peers`, else none."
    )
    peer_address: Annotated[str, AfterValidator(members.reachable_address)] | None = Field(
        None,
        description="HOST:PORT at which the other members reach this one; default: where it listens, and for "
        "0.0.0.0 the machine's own address.",
    )
    peer_name: Annotated[str, AfterValidator(members.member_name)] | None = Field(
        None,
        description="Name of this member, which stays when its address changes; default: the variable NODE_NAME, in a "
        "Slurm job SLURMD_NODENAME, else the host's name.",
    )
    peer_key_file: File | None = Field(
        None,
        description="File with the key of the cluster, a line of 32 bytes or more; a second line is accepted, too. "
        "Required with `peers`; read again when it changes.",
    )
    peer_zone: Annotated[str, AfterValidator(members.member_name)] | None = Field(
        None, description="Zone of this member; default: as the source of members gives it."
    )
    peer_domain: Literal["zone", "cluster"] = Field(
        "zone", description="The members that share blocks: those of one zone, or all."
    )
    peer_tls_cert: File | None = Field(
        None,
        description="Certificate chain of this member, for TLS between members; read again when it changes, as its "
        "key and the authority.",
    )
    peer_tls_key: File | None = Field(None, description="Private key of the member's certificate.")
    peer_tls_ca: File | None = Field(
        None, description="Certificates of the authority that signs the members' certificates, and no others."
    )
    freshness: FreshnessText = Field(
        "ttl:60", description="How long an object is served without revalidation at the origin."
    )
    freshness_rules: tuple[FreshnessRule, ...] = Field((), description="Freshness per bucket/key glob, first match.")
    list_cache: tuple[ListCacheRule, ...] = Field(
        (), description="LISTs to cache, per bucket/prefix glob, first match."
    )
    stale_if_error: bool = Field(False, description="Serve stale objects while the origin cannot be reached.")
    policy: Literal["epoch", "lru", "fifo", "none"] = Field(
        "epoch", description="Which blocks are evicted when room is needed."
    )
    prefetch: Literal["epoch", "object", "off"] | None = Field(
        None,
        description="Prefetch: the next objects of the epoch, the rest of an open object, or nothing. "
        "Default: epoch with the policy epoch, else object.",
    )
    prefetch_rules: tuple[PrefetchRule, ...] = Field((), description="Prefetch per bucket/key glob, first match.")
    warm_writes: Words = Field(
        (), description="Objects to fetch into the cache once they were written, as bucket/key globs."
    )
    prefetch_bytes: Bytes = Field(
        256 * 2**20, ge=2**20, description="Bytes of prefetch under way, at most; never more blocks than `fills`."
    )
    prefetch_bandwidth: Bytes = Field(0, ge=0, description="Bytes a second of prefetch at most; 0: no limit.")
    verify: Literal["first", "always"] = Field(
        "first",
        description="When the checksum of a block is verified: at its first read after a start, or at every read.",
    )
    verify_origin: Literal["auto", "off"] = Field(
        "auto", description="Compare what comes from the origin with its checksums and MD5 ETags, where it states them."
    )
    scrub_bandwidth: Bytes = Field(
        20_000_000, ge=0, description="Bytes a second that the scrubber reads to find damaged blocks; 0: no scrubbing."
    )
    origin_connections: int = Field(128, ge=1, le=10_000, description="Connections to the origin, at most.")
    origin_timeout_s: float = Field(
        30.0,
        gt=0,
        le=3600,
        description="How long the origin may be silent during a read, and how long a request waits for a connection.",
    )
    origin_patience_s: float = Field(
        60.0,
        ge=0,
        le=3600,
        description="How long reads that clients wait for are tried again while the origin fails, since their last "
        "byte; before a reply has begun 45 at most.",
    )
    receivers: int | None = Field(
        None,
        ge=0,
        le=64,
        description="Processes that receive large bodies over https, and as many for those of other members over TLS; "
        "default: one for each core that may be used, at most four; 0: none.",
    )
    fills: int = Field(64, ge=1, le=10_000, description="Fills under way, at most.")
    requests: int = Field(4096, ge=1, description="Requests answered at the same time, at most; more get 503 SlowDown.")
    max_connections: int = Field(
        8192,
        ge=1,
        description="Client connections, at most, if the limit on open files allows as many; more get 503 SlowDown.",
    )
    buffer_bytes: Bytes = Field(
        384 * 2**20, ge=16 * 2**20, description="Memory for bytes in transit and for cached LISTs, at most."
    )
    client_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="How long a client may be silent during its request."
    )
    client_idle_s: float = Field(
        600.0, gt=0, le=86_400, description="How long a client connection may be idle between requests."
    )
    catalog_entries: int = Field(
        2_000_000, ge=1, description="Objects whose version is remembered, and names that prefetch knows, at most."
    )
    drain_s: float = Field(30.0, ge=0, le=3600, description="How long a stop waits for requests under way.")
    price_per_gb: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Dollars for 10**9 bytes out of the bucket, to show savings; 0: not shown.",
    )
    price_per_1000_gets: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Dollars for 1,000 GETs or HEADs of the bucket, to show savings; 0: not shown.",
    )
    traces: bool = Field(
        False,
        description="Send an OpenTelemetry span for each request, as the variables OTEL_* say; needs the extra "
        "`tracing`.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")
    log_format: Literal["json", "text"] | None = Field(
        None, description="Format of the log; default: text on a terminal, else json."
    )

    _retired: tuple[str, ...] = PrivateAttr(())

    @property
    def retired(self) -> tuple[str, ...]:
        """The `RETIRED` settings that somebody still gives; a start warns of them."""
        return self._retired

    @property
    def cache_in_memory(self) -> bool:
        """The cache is on the tmpfs, and ends with the process."""
        return self.cache_dir == (Path("memory"),)

    @property
    def known_clients(self) -> tuple[tuple[Client, SecretStr], ...]:
        """The clients in the clients file that have a key, each with its secret key."""
        return self._clients_file[0]

    @property
    def anonymous_client(self) -> Client | None:
        """The client that unsigned requests belong to; None: they are refused."""
        return self._clients_file[1]

    @cached_property
    def _clients_file(self) -> Clients:
        return ((), None) if self.clients is None else read_clients(self.clients)

    @property
    def peer_source(self) -> members.Peers | None:
        """The source of members; None: this node caches by itself."""
        return None if self.peers is None else members.parse_peers(self.peers)

    @property
    def peer_listen_at(self) -> str | None:
        """Where the peer port listens; None: there is none."""
        return None if self.peers is None else self.peer_listen or _PEER_LISTEN

    def freshness_of(self, ref: ObjectRef) -> Freshness:
        name = f"{ref.bucket}/{ref.key}"
        for rule in self.freshness_rules:
            if fnmatchcase(name, rule.objects):
                return Freshness.parse(rule.freshness)
        return self._default_freshness

    def freshness_under(self, bucket: str, prefix: str) -> Freshness:
        """The shortest freshness of all objects whose keys begin with `prefix`."""
        rules = ((rule.objects, Freshness.parse(rule.freshness)) for rule in self.freshness_rules)
        return shortest_under(f"{bucket}/{prefix}", rules, self._default_freshness)

    @property
    def prefetch_blocks(self) -> int:
        """The prefetched blocks that may be under way at once, apart from those that complete an open object.

        There are no more than `fills`. Further blocks would be chosen too early, and all in one turn of the loop: 200
        blocks of 512 KiB, at the beginning of an epoch with a known order, took the engine 11 ms.
        """
        return max(1, min(self.prefetch_bytes // self.block_size, self.fills))

    def prefetch_of(self, ref: ObjectRef) -> Literal["epoch", "object", "off"]:
        name = f"{ref.bucket}/{ref.key}"
        for rule in self.prefetch_rules:
            if fnmatchcase(name, rule.objects):
                return rule.prefetch
        return self.prefetch or ("epoch" if self.policy == "epoch" else "object")

    @property
    def prefetch_off(self) -> bool:
        """`prefetch_of` is `off` for all objects."""
        return self.prefetch == "off" and all(rule.prefetch == "off" for rule in self.prefetch_rules)

    def warms(self, written: ObjectRef) -> bool:
        return any(fnmatchcase(f"{written.bucket}/{written.key}", objects) for objects in self.warm_writes)

    def list_ttl_of(self, prefix: str) -> float | None:
        """For how many seconds a LIST of `bucket/prefix` is cached; None: not at all."""
        return next((rule.ttl_s for rule in self.list_cache if fnmatchcase(prefix, rule.prefixes)), None)

    @cached_property
    def _default_freshness(self) -> Freshness:
        return Freshness.parse(self.freshness)

    def check(self) -> Self:
        """Check rules that concern several settings.

        Raises:
            SettingsError
        """
        wrong = []
        if self.auth == "loopback" and not is_loopback(self.listen):
            wrong.append(
                f"--listen {self.listen}: auth = loopback lets everybody in, so it only binds to loopback. "
                "Use --listen 127.0.0.1:9480, or --auth sigv4 with --clients FILE."
            )
        if self.auth == "sigv4" and self.clients is None:
            wrong.append("--auth sigv4 needs --clients FILE with the client keys and their grants.")
        if self.auth != "sigv4" and self.clients is not None:
            wrong.append("--clients FILE needs --auth sigv4: without it everybody is let in, whatever the file says.")
        if not is_loopback(self.admin) and self.admin_token is None:
            wrong.append(f"--admin {self.admin}: off loopback it needs OUTRIDER_ADMIN_TOKEN.")
        wrong += [
            f'warm_writes "{objects}": it matches no object. Write the bucket and a glob of its keys, as in '
            f'"{objects}/*".'
            for objects in self.warm_writes if "/" not in objects and "*" not in objects
        ]  # fmt: skip
        if len(self.cache_dir) > 1 and Path("memory") in self.cache_dir:
            wrong.append("--cache-dir memory stands alone: give it once, or only directories.")
        if (self.tls_cert is None) != (self.tls_key is None):
            wrong.append("--tls-cert and --tls-key go together.")
        wrong += self._wrong_about_peers()
        ahead = {self.prefetch, *(rule.prefetch for rule in self.prefetch_rules)}
        if self.policy != "epoch" and "epoch" in ahead:
            wrong.append(
                f"--prefetch epoch with --policy {self.policy}: what was fetched ahead would be evicted unread. "
                "Use --policy epoch, or --prefetch object."
            )
        if wrong:
            raise SettingsError("\n".join(wrong))
        if self.auth == "sigv4":
            _ = self.known_clients
        return self

    def _wrong_about_peers(self) -> list[str]:
        wrong = []
        if self.peers is not None and self.peer_key_file is None:
            wrong.append(
                "--peers needs --peer-key-file FILE with the key that all members share. `openssl rand -base64 48` "
                "makes one."
            )
        if self.peers is None and self.peer_listen is not None:
            wrong.append("--peer-listen needs --peers: without members nobody may ask there.")
        tls = (self.peer_tls_cert, self.peer_tls_key, self.peer_tls_ca)
        if any(tls) and not all(tls):
            wrong.append("--peer-tls-cert, --peer-tls-key and --peer-tls-ca go together.")
        return wrong
