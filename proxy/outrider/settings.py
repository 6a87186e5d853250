"""The settings model: merges flags, `OUTRIDER_*` variables and a TOML file, in that order, and checks the values.

Settings are read once, at the start, and do not change afterwards.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from outrider.core.auth.grants import AccessLevel, Client, Grant
from outrider.core.cache.freshness import Freshness
from outrider.core.model import ObjectRef

_ENV_PREFIX = "OUTRIDER_"
_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "kib": 2**10, "m": 10**6, "mb": 10**6, "mib": 2**20,
          "g": 10**9, "gb": 10**9, "gib": 2**30, "t": 10**12, "tb": 10**12, "tib": 2**40}  # fmt: skip
# Characters of an endpoint: it has no query and no fragment.
_IN_URL = re.compile(r"[^\s?#]+")
# Characters that every client can send in a header.
_IN_HEADER = re.compile(r"[ -~]+")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*|%)", re.ASCII)


class SettingsError(ValueError):
    """One or more settings are wrong. Each line names one and says what is allowed."""


class Size(BaseModel):
    """A number of bytes, or a share of a total that is known later."""

    model_config = ConfigDict(frozen=True)
    amount_bytes: int = 0
    share: float = 0.0

    def of(self, whole_bytes: int) -> int:
        return self.amount_bytes + int(self.share * whole_bytes)


def _size(value: object) -> object:
    if isinstance(value, Size):
        return value
    is_plain = isinstance(value, int | str) and not isinstance(value, bool)
    match = _SIZE.fullmatch(str(value).strip()) if is_plain else None
    if match is None or (match[2] != "%" and match[2].lower() not in _UNITS):
        raise PydanticCustomError("size", "is not a size: write bytes, or a number with KiB, MiB, GiB, TiB or %")
    if match[2] == "%":
        if float(match[1]) > 100:
            raise PydanticCustomError("size", "is more than 100 %")
        return Size(share=float(match[1]) / 100)
    return Size(amount_bytes=int(float(match[1]) * _UNITS[match[2].lower()]))


def _plain_bytes(value: object) -> object:
    size = _size(value)
    if isinstance(size, Size):
        if size.share:
            raise PydanticCustomError("size", "must be a number of bytes here, not a share")
        return size.amount_bytes
    return size


def parse_bytes(text: str) -> int:
    """A number of bytes, from a text such as `64MiB`. Raises ValueError."""
    try:
        found = _plain_bytes(text)
    except PydanticCustomError as error:
        raise ValueError(f"{text}: {error}") from error
    assert isinstance(found, int)
    return found


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        # Reading `port` raises for an invalid one.
        wrong = parts.port == 0 or parts.scheme not in ("http", "https") or not parts.hostname
    except ValueError:
        wrong = True
    if wrong or not _IN_URL.fullmatch(value) or "@" in parts.netloc:
        raise PydanticCustomError("endpoint", "must be http://HOST[:PORT] or https://HOST[:PORT]")
    return value.rstrip("/")


def _path(value: object) -> object:
    # For pathlib an empty path is the working directory. A variable that is set to nothing hardly means that.
    if value == "":
        raise PydanticCustomError("path", "must not be empty")
    return value


def _token(value: object) -> object:
    # A Kubernetes Secret that was made from a file ends with a newline, which no header can hold.
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and not _IN_HEADER.fullmatch(text):
        raise PydanticCustomError("token", "must be one line of ASCII, and not empty")
    return text


def _address(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise PydanticCustomError("address", "must be HOST:PORT (port 0: any free one)")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise PydanticCustomError("address", "must have its IPv6 address in brackets: [::1]:9480")
    return value


def _freshness(value: str) -> str:
    try:
        Freshness.parse(value)
    except ValueError as error:
        raise PydanticCustomError("freshness", "{why}", {"why": str(error)}) from error
    return value


def _comma_list(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Address = Annotated[str, AfterValidator(_address)]
File = Annotated[Path, BeforeValidator(_path)]
FreshnessText = Annotated[str, AfterValidator(_freshness)]


class FreshnessRule(BaseModel):
    """`objects` is a glob over `bucket/key`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    objects: str
    freshness: FreshnessText


class PrefetchRule(BaseModel):
    """`objects` is a glob over `bucket/key`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    objects: str
    prefetch: Literal["epoch", "object", "off"]


class ListCacheRule(BaseModel):
    """LISTs of `bucket/prefix` that match the glob `prefixes` are kept for `ttl_s` seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    prefixes: str
    ttl_s: float = Field(gt=0)


# Settings that are lists of tables in the file. They cannot be given as flags or variables.
_RULES: Mapping[str, type[BaseModel]] = {
    "freshness_rules": FreshnessRule, "prefetch_rules": PrefetchRule, "list_cache": ListCacheRule,
}  # fmt: skip


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "outrider"


class Settings(BaseModel):
    """The settings of `serve` and `run`. Sizes are bytes, `*_s` are seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    origin: Annotated[str, AfterValidator(_endpoint)] | None = Field(
        None,
        description="Endpoint of the origin; default: from the AWS environment or profile, else AWS S3's.",
    )
    region: str | None = Field(
        None, description="Region to sign for; default: from the AWS environment or profile, else us-east-1."
    )
    listen: Address = Field("127.0.0.1:9480", description="Address for S3 clients.")
    admin: Address = Field("127.0.0.1:9481", description="Address for health, metrics and status.")
    admin_token: Annotated[SecretStr | None, BeforeValidator(_token)] = Field(
        None, description="Bearer token of the admin port; required off loopback."
    )
    cache_dir: File = Field(
        default_factory=_default_cache_dir, description="Directory of the cache; `memory`: on the tmpfs."
    )
    cache_size: Annotated[Size, BeforeValidator(_size)] = Field(
        Size(share=0.8), description="Size of the cache on disk, in bytes or as a share of the file system."
    )
    min_free: Annotated[Size, BeforeValidator(_size)] = Field(
        Size(share=0.05), description="Free space to leave on the file system, in bytes or as a share."
    )
    block_size: Annotated[int, BeforeValidator(_plain_bytes)] = Field(
        8 * 2**20, ge=64 * 2**10, le=2**30, multiple_of=4096, description="Size of a block."
    )
    auth: Literal["loopback", "sigv4"] = Field(
        "loopback", description="Access control: anybody on loopback, or signed requests of known clients."
    )
    clients: File | None = Field(None, description="TOML file with the keys and grants of clients, for `auth = sigv4`.")
    cross_site: bool = Field(
        False,
        description="Answer unsigned requests of web pages of other sites, as a bucket's CORS rules allow; "
        "in loopback mode under any Host.",
    )
    domain: Annotated[tuple[str, ...], BeforeValidator(_comma_list)] = Field(
        (), description="Domain for virtual-host style requests to BUCKET.DOMAIN."
    )
    tls_cert: File | None = Field(None, description="Certificate chain; the S3 port then serves https.")
    tls_key: File | None = Field(None, description="Private key of the certificate.")
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
    prefetch_bytes: Annotated[int, BeforeValidator(_plain_bytes)] = Field(
        256 * 2**20,
        ge=2**20,
        description="Bytes of prefetch under way, at most; never more blocks than `fills`.",
    )
    prefetch_bandwidth: Annotated[int, BeforeValidator(_plain_bytes)] = Field(
        0, ge=0, description="Bytes a second of prefetch at most; 0: no limit."
    )
    verify: Literal["first", "always"] = Field(
        "first",
        description="When the checksum of a block is verified: at its first read after a start, or at every read.",
    )
    verify_origin: Literal["auto", "off"] = Field(
        "auto",
        description="Compare what comes from the origin with its checksums and MD5 ETags, where it tells them.",
    )
    scrub_bandwidth: Annotated[int, BeforeValidator(_plain_bytes)] = Field(
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
    fills: int = Field(64, ge=1, le=10_000, description="Fills under way, at most.")
    requests: int = Field(4096, ge=1, description="Requests answered at the same time, at most; more get 503 SlowDown.")
    max_connections: int = Field(
        8192,
        ge=1,
        description="Client connections, at most, if the limit on open files allows as many; more get 503 SlowDown.",
    )
    buffer_bytes: Annotated[int, BeforeValidator(_plain_bytes)] = Field(
        384 * 2**20, ge=16 * 2**20, description="Memory for bytes in transit and for cached LISTs, at most."
    )
    client_timeout_s: float = Field(
        60.0, gt=0, le=3600, description="How long a client may be silent during its request."
    )
    client_idle_s: float = Field(
        600.0, gt=0, le=86_400, description="How long a client connection may be idle between requests."
    )
    catalog_entries: int = Field(1_000_000, ge=1, description="Objects whose version is remembered, at most.")
    workers: int = Field(1, ge=1, le=64, description="Event loops that answer hits, each in its own thread.")
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

    @property
    def known_clients(self) -> tuple[tuple[Client, SecretStr], ...]:
        """The clients in the clients file that have a key, each with its secret key."""
        return self._clients_file[0]

    @property
    def anonymous_client(self) -> Client | None:
        """The client that unsigned requests belong to; None: they are refused."""
        return self._clients_file[1]

    @cached_property
    def _clients_file(self) -> _Clients:
        return ((), None) if self.clients is None else _read_clients(self.clients)

    def freshness_of(self, ref: ObjectRef) -> Freshness:
        name = f"{ref.bucket}/{ref.key}"
        for rule in self.freshness_rules:
            if fnmatchcase(name, rule.objects):
                return Freshness.parse(rule.freshness)
        return self._default_freshness

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
        if self.auth == "loopback" and not _is_loopback(self.listen):
            wrong.append(
                f"--listen {self.listen}: auth = loopback lets everybody in, so it only binds to loopback. "
                "Use --listen 127.0.0.1:9480, or --auth sigv4 with --clients FILE."
            )
        if self.auth == "sigv4" and self.clients is None:
            wrong.append("--auth sigv4 needs --clients FILE with the client keys and their grants.")
        if self.auth != "sigv4" and self.clients is not None:
            wrong.append("--clients FILE needs --auth sigv4: without it everybody is let in, whatever the file says.")
        if not _is_loopback(self.admin) and self.admin_token is None:
            wrong.append(f"--admin {self.admin}: off loopback it needs OUTRIDER_ADMIN_TOKEN.")
        if (self.tls_cert is None) != (self.tls_key is None):
            wrong.append("--tls-cert and --tls-key go together.")
        if self.workers > 1 and self.tls_cert is not None:
            wrong.append("--workers above 1 serves plain http alone: the kernel cannot send files through TLS.")
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


def load(flags: Mapping[str, object], config: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `flags` (None: not given), the environment and the file `config`; the first of them wins.

    Errors name the flag of a setting if `flags` has its name.

    Raises:
        SettingsError: an unknown setting, or an invalid value.
    """
    environ = os.environ if environ is None else environ
    from_env = {name[len(_ENV_PREFIX) :].lower() for name in environ if name.startswith(_ENV_PREFIX)}
    # OUTRIDER_STATUS_URL is not a setting: `outrider run` sets it, to tell its child where the admin port is.
    unknown = sorted(from_env - set(Settings.model_fields) - {"config", "status_url"})
    if unknown:
        raise SettingsError(
            "\n".join(f"{_ENV_PREFIX}{name.upper()}: no such setting. Known: {_names(Settings)}." for name in unknown)
        )
    if config is None and "OUTRIDER_CONFIG" in environ:
        config = Path(environ["OUTRIDER_CONFIG"])
    values: dict[str, Any] = {} if config is None else _read_toml(config)
    for name in sorted(from_env & set(Settings.model_fields)):
        values[name] = environ[_ENV_PREFIX + name.upper()]
    values.update({name: value for name, value in flags.items() if value is not None})
    try:
        return Settings(**values).check()
    except ValidationError as error:
        raise SettingsError("\n".join(_line(detail, flags) for detail in error.errors())) from error


def _line(detail: Any, flags: Collection[str]) -> str:
    path = [str(part) for part in detail["loc"]]
    name = path[0] if path else "settings"
    rule = _RULES.get(name)
    if detail["type"] == "extra_forbidden":
        return f"{'.'.join(path)}: no such setting. Known: {_names(rule or Settings)}."
    given, message = detail.get("input"), detail["msg"]
    if rule is not None:
        where = ".".join(path)
    else:
        flag = f"--{name.replace('_', '-')}" if name in flags else name
        where = f"{flag} ({_ENV_PREFIX}{name.upper()})"
    if detail["type"] == "missing":
        return f"{where}: is missing"
    # The value is left out where it may hold a password, and where the message begins with it.
    hidden = name == "admin_token" or "@" in str(given) or message.startswith(repr(given))
    return f"{where}: {_lower(message)}" if hidden else f"{where}: {given!r} {_lower(message)}"


def _lower(message: str) -> str:
    return message if message.startswith("'") else message[:1].lower() + message[1:]


def _names(model: type[BaseModel]) -> str:
    return ", ".join(sorted(model.model_fields))


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # any other name may resolve to any address


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error


class _GrantEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")
    bucket: str
    prefix: str = ""
    access: Literal["read", "write"] = "read"


class _ClientEntry(BaseModel):
    model_config = ConfigDict(extra="forbid")
    access_key: str = Field("", min_length=1)
    secret_key: SecretStr = Field(SecretStr(""), min_length=1)
    anonymous: bool = False
    name: str = ""
    grants: tuple[_GrantEntry, ...] = ()

    @model_validator(mode="after")
    def _has_keys_or_is_anonymous(self) -> Self:
        keys = {"access_key", "secret_key"}
        if self.anonymous and keys & self.model_fields_set:
            raise PydanticCustomError("keys", "anonymous = true has no access_key and no secret_key")
        if not self.anonymous and (missing := sorted(keys - self.model_fields_set)):
            raise PydanticCustomError("keys", "is missing: {missing}", {"missing": ", ".join(missing)})
        return self


class _ClientsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    client: tuple[_ClientEntry, ...]


_Clients = tuple[tuple[tuple[Client, SecretStr], ...], Client | None]
"""The clients with a key, each with its secret key, and the anonymous one."""


def _read_clients(path: Path) -> _Clients:
    try:
        entries = _ClientsFile.model_validate(_read_toml(path)).client
    except ValidationError as error:
        # The value is not shown: it may be a secret.
        lines = (
            f"{path}: {'.'.join(str(part) for part in detail['loc'])}: {detail['msg']}" for detail in error.errors()
        )
        raise SettingsError("\n".join(lines)) from error
    keyed = [entry for entry in entries if not entry.anonymous]
    anonymous = [_client(entry) for entry in entries if entry.anonymous]
    keys = [entry.access_key for entry in keyed]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise SettingsError(f"{path}: access keys given twice: {', '.join(twice)}")
    if len(anonymous) > 1:
        raise SettingsError(f"{path}: anonymous = true is given twice")
    return tuple((_client(entry), entry.secret_key) for entry in keyed), anonymous[0] if anonymous else None


def _client(entry: _ClientEntry) -> Client:
    grants = tuple(Grant(grant.bucket, grant.prefix, AccessLevel(grant.access)) for grant in entry.grants)
    name = entry.name or entry.access_key or "anonymous"
    return Client(name, entry.access_key, grants, is_anonymous=entry.anonymous)
