"""Loads the settings of a command: flags, environment and file, and the origin that the AWS environment names.

Wrong settings end the command with status 2.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import typer

from outrider import settings
from outrider.cli import aws_environment
from outrider.settings import Settings, SettingsError

_PORTS = {"http": 80, "https": 443}
_EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - to compare with
_NO_DEFAULTS: Mapping[str, object] = {}
_NO_NAMES: Mapping[str, str] = {}


def load(
    flags: Mapping[str, object], config: Path | None, defaults: Mapping[str, object] = _NO_DEFAULTS,
    named_by: Mapping[str, str] = _NO_NAMES,
) -> Settings:  # fmt: skip
    """`defaults` hold where flags, environment and file set nothing. Wrong settings end the command. `named_by`: the
    names by which the user knows settings that the user did not set, by the names in messages."""
    try:
        loaded = settings.load(flags, config)
        unset = {name: value for name, value in defaults.items() if name not in loaded.model_fields_set}
        return settings.load({**flags, **unset}, config) if unset else loaded
    except SettingsError as error:
        text = str(error)
        for name, known_as in named_by.items():
            text = text.replace(name, known_as)
        raise refused(SettingsError(text)) from error


def load_with_origin(
    flags: Mapping[str, object], config: Path | None, defaults: Mapping[str, object], environ: Mapping[str, str]
) -> tuple[Settings, str | None]:
    """Like `load`, with the origin that the AWS environment names where no setting does.

    The second value says which variable or profile named it; None: none did, or a setting did. The proxy's own address
    is skipped there: the variables may be set for the proxy as they are for its clients. As the setting `origin` it
    ends the command.
    """
    loaded = load(flags, config, defaults)
    refuse_itself(loaded.origin, loaded.listen)
    if loaded.origin is None:
        named = (aws_environment.endpoint_in(environ), aws_environment.endpoint_in_profile(environ))
        for name, endpoint in filter(None, named):
            if not leads_to(endpoint, loaded.listen):
                return load({**flags, "origin": endpoint}, config, defaults, {"--origin (OUTRIDER_ORIGIN)": name}), name
    return loaded, None


def refuse_itself(origin: str | None, listen: str) -> None:
    """End the command with status 2 if the proxy at `listen` would be its own origin."""
    if origin and leads_to(origin, listen):
        raise refused(
            SettingsError(f"--origin {origin} is --listen: the proxy would ask itself. Name the real bucket's.")
        )


def refused(error: Exception) -> typer.Exit:
    """Print `error` on stderr, as wrong use or wrong settings; the caller raises the result: exit status 2."""
    for line in str(error).splitlines():
        typer.echo(f"outrider: {line}", err=True)
    return typer.Exit(2)


def leads_to(endpoint: str, listen: str) -> bool:
    """Whether a request to `endpoint` (a URL) reaches a proxy on this machine that listens at `listen` (HOST:PORT).

    Names are resolved, so it does not matter how the endpoint spells the address.
    """
    host, _, port = listen.rpartition(":")
    try:
        parts = urlsplit(endpoint)
        if not parts.hostname or str(parts.port or _PORTS.get(parts.scheme)) != port:
            return False
        theirs, ours = _addresses(parts.hostname), _addresses(host.strip("[]"))
    except (OSError, ValueError):
        return False  # no such host, or no URL: the first request to it will fail and say so
    return not theirs.isdisjoint(ours) or (not ours.isdisjoint(_EVERYWHERE) and any(map(_is_of_this_machine, theirs)))


def _addresses(host: str) -> set[str]:
    return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}


def _is_of_this_machine(address: str) -> bool:
    """Only addresses of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as tried:
        tried.bind((address, 0))
        return True
    return False
