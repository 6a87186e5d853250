"""Reads the AWS config and credentials files as botocore does: the values of the profile that applies.

The files are read here, not by botocore, whose import takes a third of a second.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterable, Mapping
from configparser import Error as ConfigParserError
from configparser import RawConfigParser
from pathlib import Path

Sections = dict[str, dict[str, str]]

_CONFIG = ("AWS_CONFIG_FILE", "~/.aws/config")
# In botocore's order. Other SDKs know the second name alone.
_PROFILE = ("AWS_DEFAULT_PROFILE", "AWS_PROFILE")
_CREDENTIALS = ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")


def profile_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The values of the profile that applies; empty: there is none. The credentials file wins over the config file."""
    name = next((environ[name] for name in _PROFILE if environ.get(name)), "default")
    config = _sections(_CONFIG, environ)
    values = (config.get("default", {}) if name == "default" else {}) | _named("profile", name, config)
    return values | _sections(_CREDENTIALS, environ).get(name, {})


def missing_profile(environ: Mapping[str, str]) -> str | None:
    """Why the profile that `environ` names is none, and what to do; None: it is one, or no profile is named."""
    variable = next((name for name in _PROFILE if environ.get(name)), None)
    if variable is None:
        return None
    files = [_path(file, environ) for file in (_CONFIG, _CREDENTIALS)]
    (config, config_is_whole), (credentials, credentials_are_whole) = map(_read, files)
    known = {"default"} & config.keys() | credentials.keys() | _names("profile", config)
    if environ[variable] in known or not (config_is_whole and credentials_are_whole):
        return None
    where = " and ".join(map(str, files))
    do = f"Name one of {', '.join(sorted(known))}, or unset it." if known else "Unset it, or write that profile."
    return f"{variable}={environ[variable]}: there is no such profile in {where}. {do}"


def may_have_profiles(environ: Mapping[str, str]) -> bool:
    """Whether a profile is named, or there is a file that may hold one."""
    named = any(environ.get(name) is not None for name in _PROFILE)
    return named or any(_path(file, environ).is_file() for file in (_CONFIG, _CREDENTIALS))


def in_profile(environ: Mapping[str, str], name: str) -> str | None:
    """The value of `name` in the AWS profile, else in the single sign-on session that the profile names."""
    profile = profile_of(environ)
    if value := profile.get(name):
        return value
    return _named("sso-session", profile.get("sso_session", ""), _sections(_CONFIG, environ)).get(name) or None


def in_services(environ: Mapping[str, str], service: str, name: str) -> str | None:
    """The value of `name` for `service` in the `services` section that the profile names."""
    section = profile_of(environ).get("services")
    if section is None:
        return None
    lines = _named("services", section, _sections(_CONFIG, environ)).get(service, "").splitlines()
    nested = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    return nested.get(name) or None


def ca_bundle(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """The setting that names a file of certificates to trust, and the file; None: no setting does.

    Source: botocore, `Session.create_client` and `EndpointCreator._get_verify_value`.
    """
    if path := environ.get("AWS_CA_BUNDLE"):
        return "AWS_CA_BUNDLE", path
    if path := profile_of(environ).get("ca_bundle"):
        return "ca_bundle of the AWS profile", path
    if path := environ.get("REQUESTS_CA_BUNDLE"):
        return "REQUESTS_CA_BUNDLE", path
    return None


def is_on(environ: Mapping[str, str], name: str) -> bool:
    """A boolean of the AWS SDKs: the variable `AWS_NAME`, else `name` in the profile."""
    value = environ.get(f"AWS_{name.upper()}")
    if value is None:
        value = profile_of(environ).get(name, "")
    return value.lower() == "true"


def _named(kind: str, name: str, sections: Sections) -> dict[str, str]:
    """The values of the section `[kind name]`."""
    return next((sections[own] for own in reversed(sections) if _names(kind, [own]) == {name}), {})


def _names(kind: str, sections: Iterable[str]) -> set[str]:
    """The names in the sections `[kind name]`, where they may be in quotes."""
    found: set[str] = set()
    for section in sections:
        with contextlib.suppress(ValueError):
            if section.startswith(kind) and len(words := shlex.split(section)) == 2:
                found.add(words[1])
    return found


def _sections(file: tuple[str, str], environ: Mapping[str, str]) -> Sections:
    return _read(_path(file, environ))[0]


def _read(path: Path) -> tuple[Sections, bool]:
    """The sections of a file, none if there is no such file; and whether all of it was read. A broken file is reported
    by whoever needs it: botocore says more about it."""
    config, is_whole = RawConfigParser(strict=False), True
    try:
        config.read(path)
    except (ConfigParserError, OSError, ValueError):
        is_whole = False
    return {name: dict(config.items(name)) for name in config.sections()}, is_whole


def _path(file: tuple[str, str], environ: Mapping[str, str]) -> Path:
    return Path(os.path.expandvars(environ.get(*file))).expanduser()
