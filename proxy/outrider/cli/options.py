"""The flags that `serve` and `run` share. None: not given, so that the environment or the file may say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider import settings
from outrider.settings import Settings, SettingsError

_FIELDS = settings.Settings.model_fields


def _help(name: str) -> str:
    return _FIELDS[name].description or ""


Config = Annotated[Path | None, typer.Option(help="TOML file with settings; flags and OUTRIDER_* win over it.")]
Origin = Annotated[str | None, typer.Option(help=_help("origin"), metavar="URL")]
Region = Annotated[str | None, typer.Option(help=_help("region"))]
Listen = Annotated[str | None, typer.Option(help=_help("listen"), metavar="HOST:PORT")]
Admin = Annotated[str | None, typer.Option(help=_help("admin"), metavar="HOST:PORT")]
CacheDir = Annotated[str | None, typer.Option(help=_help("cache_dir"), metavar="DIR|memory")]
CacheSize = Annotated[str | None, typer.Option(help=_help("cache_size"), metavar="BYTES|%")]
MinFree = Annotated[str | None, typer.Option(help=_help("min_free"), metavar="BYTES|%")]
BlockSize = Annotated[str | None, typer.Option(help=_help("block_size"), metavar="BYTES")]
Auth = Annotated[str | None, typer.Option(help=_help("auth"), metavar="loopback|sigv4")]
Clients = Annotated[Path | None, typer.Option(help=_help("clients"), metavar="FILE")]
Domain = Annotated[list[str] | None, typer.Option(help=_help("domain"), metavar="NAME")]
TlsCert = Annotated[Path | None, typer.Option(help=_help("tls_cert"), metavar="FILE")]
TlsKey = Annotated[Path | None, typer.Option(help=_help("tls_key"), metavar="FILE")]
Freshness = Annotated[str | None, typer.Option(help=_help("freshness"), metavar="immutable|ttl:S|always")]
Policy = Annotated[str | None, typer.Option(help=_help("policy"), metavar="epoch|lru|fifo|none")]
Prefetch = Annotated[str | None, typer.Option(help=_help("prefetch"), metavar="epoch|object|off")]
Verify = Annotated[str | None, typer.Option(help=_help("verify"), metavar="first|always")]
Workers = Annotated[int | None, typer.Option(help=_help("workers"), metavar="N")]
Traces = Annotated[bool | None, typer.Option("--traces", help=_help("traces"))]
LogLevel = Annotated[str | None, typer.Option(help=_help("log_level"), metavar="debug|info|warning|error")]
LogFormat = Annotated[str | None, typer.Option(help=_help("log_format"), metavar="json|text")]


def load(flags: dict[str, object], config: Path | None) -> Settings:
    """The settings; what is wrong with them goes to stderr, and the exit code is 2."""
    try:
        return settings.load(flags, config)
    except SettingsError as error:
        raise refused(error) from error


def refused(error: Exception) -> typer.Exit:
    """Wrong use or settings: said on stderr, exit code 2."""
    for line in str(error).splitlines():
        typer.echo(f"outrider: {line}", err=True)
    return typer.Exit(2)
