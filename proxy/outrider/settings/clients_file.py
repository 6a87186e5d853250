"""Reads the clients file: the clients of `auth = sigv4`, their keys and their grants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from outrider.core.auth.grants import AccessLevel, Client, Grant
from outrider.core.cache.tenants import TenantShare
from outrider.settings.values import SettingsError, as_share, read_toml

_Share = Annotated[float, BeforeValidator(as_share)]


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
    cache_share: _Share | None = None
    line_share: _Share | None = None

    @model_validator(mode="after")
    def _has_keys_or_is_anonymous(self) -> Self:
        keys = {"access_key", "secret_key"}
        if self.anonymous and keys & self.model_fields_set:
            raise PydanticCustomError("keys", "anonymous = true has no access_key and no secret_key")
        if self.anonymous and {"cache_share", "line_share"} & self.model_fields_set:
            raise PydanticCustomError("shares", "anonymous = true has no shares: its requests go past the cache")
        if not self.anonymous and (missing := sorted(keys - self.model_fields_set)):
            raise PydanticCustomError("keys", "is missing: {missing}", {"missing": ", ".join(missing)})
        return self


class _ClientsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    client: tuple[_ClientEntry, ...]


Clients = tuple[tuple[tuple[Client, SecretStr], ...], Client | None]
"""The clients with a key, each with its secret key, and the anonymous one."""


def read_clients(path: Path) -> Clients:
    try:
        entries = _ClientsFile.model_validate(read_toml(path)).client
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
    clients = tuple((_client(entry), entry.secret_key) for entry in keyed), anonymous[0] if anonymous else None
    for share in ("cache_share", "line_share"):
        given: dict[str, float] = {}
        for client, _ in clients[0]:
            part = getattr(client, share)
            if part is not None and given.setdefault(client.name, part) != part:
                raise SettingsError(f"{path}: clients named {client.name} are one tenant: give them one {share}")
    return clients


def shares_of(clients: Clients) -> dict[str, TenantShare]:
    """The shares of each tenant, by its name. One client of a tenant is enough to give them."""
    shares: dict[str, TenantShare] = {}
    for client, _ in clients[0]:
        before = shares.get(client.name, TenantShare())
        cache = before.cache if client.cache_share is None else client.cache_share
        shares[client.name] = TenantShare(cache, before.line if client.line_share is None else client.line_share)
    return shares


def _client(entry: _ClientEntry) -> Client:
    grants = tuple(Grant(grant.bucket, grant.prefix, AccessLevel(grant.access)) for grant in entry.grants)
    name = entry.name or entry.access_key or "anonymous"
    return Client(
        name, entry.access_key, grants, is_anonymous=entry.anonymous, cache_share=entry.cache_share,
        line_share=entry.line_share,
    )  # fmt: skip
