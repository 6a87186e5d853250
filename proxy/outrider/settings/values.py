"""The kinds of values that settings have, and how each is read."""

from __future__ import annotations

import re
import tomllib
from ipaddress import ip_address
from math import ceil
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from outrider.core.cache.freshness import Freshness

_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 10**3, "kib": 2**10, "m": 10**6, "mb": 10**6, "mib": 2**20,
          "g": 10**9, "gb": 10**9, "gib": 2**30, "t": 10**12, "tb": 10**12, "tib": 2**40}  # fmt: skip
# Characters of an endpoint: it has no query and no fragment.
_IN_URL = re.compile(r"[^\s?#]+")
# Characters that every client can send in a header.
_IN_HEADER = re.compile(r"[ -~]+")
# No block takes less on disk.
_CACHE_BYTES_MIN = 4096
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


def as_size(value: object) -> object:
    """The size that `value` says. Raises PydanticCustomError, as all validators here do."""
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
    return Size(amount_bytes=ceil(float(match[1]) * _UNITS[match[2].lower()]))


def _cache_size(size: Size) -> Size:
    """0 keeps nothing."""
    # With `--cache-size 10` in place of 10GiB, the start would evict all that the cache has.
    if not size.share and 0 < size.amount_bytes < _CACHE_BYTES_MIN:
        raise PydanticCustomError("size", "is too few bytes for any block: write a unit, as in 10GiB")
    return size


def as_share(value: object) -> object:
    """A part of a whole, above 0 and up to 1: such a number, or a percentage as in sizes."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        part = float(match[1]) / 100 if match is not None and match[2] == "%" else 0.0
    else:
        part = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
    if not 0 < part <= 1:
        raise PydanticCustomError("share", "is not a share: write a percentage such as 30%, or a number up to 1")
    return part


def plain_bytes(value: object) -> object:
    """As `as_size`, for a number of bytes that is no share."""
    size = as_size(value)
    if isinstance(size, Size):
        if size.share:
            raise PydanticCustomError("size", "must be a number of bytes here, not a share")
        return size.amount_bytes
    return size


def parse_bytes(text: str) -> int:
    """A number of bytes, from a text such as `64MiB`. Raises ValueError."""
    try:
        found = plain_bytes(text)
    except PydanticCustomError as error:
        raise ValueError(f"{text}: {error}") from error
    assert isinstance(found, int)
    return found


def endpoint(value: str) -> str:
    """A URL without a path."""
    try:
        parts = urlsplit(value)
        # Reading `port` raises for an invalid one.
        wrong = parts.port == 0 or parts.scheme not in ("http", "https") or not parts.hostname
    except ValueError:
        wrong = True
    if wrong or not _IN_URL.fullmatch(value) or "@" in parts.netloc:
        raise PydanticCustomError("endpoint", "must be http://HOST[:PORT] or https://HOST[:PORT]")
    if path := parts.path.strip("/"):
        # A bucket there would be a part of each request's path, and the bucket of the request a part of its key.
        raise PydanticCustomError(
            "endpoint",
            "{value} has a path, and a bucket is named by each read: write {url} here, and read s3://{path}/KEY",
            {"value": repr(value), "url": f"{parts.scheme}://{parts.netloc}", "path": path},
        )
    return value.rstrip("/")


def _path(value: object) -> object:
    # For pathlib an empty path is the working directory. A variable that is set to nothing hardly means that.
    if value == "":
        raise PydanticCustomError("path", "must not be empty")
    return value


def token(value: object) -> object:
    """A text that a header can hold, without the space around it."""
    # A Kubernetes Secret that was made from a file ends with a newline, which no header can hold.
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and not _IN_HEADER.fullmatch(text):
        raise PydanticCustomError("token", "must be one line of ASCII, and not empty")
    return text


def address(value: str) -> str:
    """`HOST:PORT`, where a server may listen."""
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


def comma_list(value: object) -> object:
    """A text's parts between commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def paths(value: object) -> object:
    """A text's parts between commas, or a list; a lone path is a list of one."""
    if value == "":
        raise PydanticCustomError("path", "must not be empty")
    return (value,) if isinstance(value, Path) else comma_list(value)


Address = Annotated[str, AfterValidator(address)]
Bytes = Annotated[int, BeforeValidator(plain_bytes)]
SizeOrShare = Annotated[Size, BeforeValidator(as_size)]
CacheSize = Annotated[Size, BeforeValidator(as_size), AfterValidator(_cache_size)]
Words = Annotated[tuple[str, ...], BeforeValidator(comma_list)]
File = Annotated[Path, BeforeValidator(_path)]
FreshnessText = Annotated[str, AfterValidator(_freshness)]


def is_loopback(listen: str) -> bool:
    """Whether a server at `HOST:PORT` is reached from this machine alone."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # any other name may resolve to any address


def read_toml(path: Path) -> dict[str, Any]:
    """Raises SettingsError."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error
