"""Merges flags, `OUTRIDER_*` variables and a TOML file into settings, and says what is wrong with them."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from outrider.settings.model import RETIRED, RULES, Settings
from outrider.settings.values import SettingsError, read_toml

_ENV_PREFIX = "OUTRIDER_"
# The variables of a Service after its name, where its pods get them ("service links").
# Source: Kubernetes' documentation, "Service", discovering services by environment variables.
_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)")


def load(flags: Mapping[str, object], config: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `flags` (None: not given), the environment and the file `config`; the first of them wins.

    Errors name the flag of a setting if `flags` has its name. Retired settings are left out: see `Settings.retired`.

    Raises:
        SettingsError: an unknown setting, or an invalid value.
    """
    environ = os.environ if environ is None else environ
    named = {name for name in environ if name.startswith(_ENV_PREFIX)}
    from_env = {name[len(_ENV_PREFIX) :].lower() for name in named - _links(named)}
    # OUTRIDER_STATUS_URL is not a setting: `outrider run` sets it, to show its child where the admin port is.
    unknown = sorted(from_env - set(Settings.model_fields) - RETIRED - {"config", "status_url"})
    if unknown:
        raise SettingsError(
            "\n".join(f"{_ENV_PREFIX}{name.upper()}: no such setting. Known: {_names(Settings)}." for name in unknown)
        )
    if config is None and "OUTRIDER_CONFIG" in environ:
        config = Path(environ["OUTRIDER_CONFIG"])
    values: dict[str, Any] = {} if config is None else read_toml(config)
    for name in sorted(from_env & (set(Settings.model_fields) | RETIRED)):
        values[name] = environ[_ENV_PREFIX + name.upper()]
    values.update({name: value for name, value in flags.items() if value is not None})
    retired = sorted(RETIRED & values.keys())
    for name in retired:
        del values[name]
    try:
        settings = Settings(**values).check()
    except ValidationError as error:
        raise SettingsError("\n".join(_line(detail, flags) for detail in error.errors())) from error
    settings._retired = tuple(retired)
    return settings


def _links(names: Collection[str]) -> set[str]:
    """The variables that Kubernetes makes for a Service whose name begins with `outrider`."""
    services = [name.removesuffix("_SERVICE_HOST") for name in names if name.endswith("_SERVICE_HOST")]
    return {
        name
        for service in services
        if f"{service}_SERVICE_PORT" in names
        for name in names
        if name.startswith(service) and _LINK.fullmatch(name, len(service))
    }


def _line(detail: Any, flags: Collection[str]) -> str:
    path = [str(part) for part in detail["loc"]]
    name = path[0] if path else "settings"
    rule = RULES.get(name)
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
