"""Makes the flags of the commands from the settings model.

One table says which settings are flags, and what a value looks like; help texts and choices come from the model. A
command names the settings that it takes: see `with_settings`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import typer

from outrider.settings import RETIRED, Settings

Flags: TypeAlias = dict[str, object]
"""The values of a command's flags by the names of settings. None: not given, so environment or file may set it."""

Config = Annotated[Path | None, typer.Option(help="TOML file with settings; flags and OUTRIDER_* win over it.")]


@dataclass(frozen=True, slots=True)
class _FlagForm:
    """`metavar` None: the choices of the setting, if it has a fixed set of them. `kind` is what typer makes of it."""

    metavar: str | None = None
    kind: Any = str


# The settings that are flags, in the order of --help. All others are set in the environment or the file.
_FLAGS: Mapping[str, _FlagForm] = {
    "origin": _FlagForm("URL"),
    "region": _FlagForm(),
    "listen": _FlagForm("HOST:PORT"),
    "admin": _FlagForm("HOST:PORT"),
    "cache_dir": _FlagForm("DIR|memory", list[str]),
    "cache_size": _FlagForm("BYTES|%"),
    "min_free": _FlagForm("BYTES|%"),
    "block_size": _FlagForm("BYTES"),
    "auth": _FlagForm(),
    "clients": _FlagForm("FILE", Path),
    "domain": _FlagForm("NAME", list[str]),
    "tls_cert": _FlagForm("FILE", Path),
    "tls_key": _FlagForm("FILE", Path),
    "peers": _FlagForm("SOURCE"),
    "peer_listen": _FlagForm("HOST:PORT"),
    "peer_address": _FlagForm("HOST:PORT"),
    "peer_name": _FlagForm("NAME"),
    "peer_key_file": _FlagForm("FILE", Path),
    "peer_zone": _FlagForm("NAME"),
    "peer_domain": _FlagForm(),
    "peer_tls_cert": _FlagForm("FILE", Path),
    "peer_tls_key": _FlagForm("FILE", Path),
    "peer_tls_ca": _FlagForm("FILE", Path),
    "freshness": _FlagForm("immutable|ttl:S|always"),
    "policy": _FlagForm(),
    "prefetch": _FlagForm(),
    "verify": _FlagForm(),
    "receivers": _FlagForm("COUNT"),
    "traces": _FlagForm(kind=bool),
    "log_level": _FlagForm(),
    "log_format": _FlagForm(),
}
ALL = (*_FLAGS, *sorted(RETIRED))

Command = Callable[..., None]


def with_settings(*names: str) -> Callable[[Command], Command]:
    """A decorator that replaces the parameter `flags` of a command by one option for each setting in `names`.

    The command is called with `flags`, a dict of the values by name. typer reads the signature that is made here.
    """

    def decorate(command: Command) -> Command:
        def called(**given: object) -> None:
            command(flags={name: given.pop(name) for name in names}, **given)

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            if parameter.name == "flags":
                parameters += [_option(name, parameter.kind) for name in names]
            else:
                parameters.append(parameter)
        update_wrapper(called, command)
        called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return called

    return decorate


def _option(name: str, kind: Any) -> inspect.Parameter:
    if name in RETIRED:
        option = typer.Option(hidden=True)
        return inspect.Parameter(name, kind, default=None, annotation=Annotated[str | None, option])
    flag, field = _FLAGS[name], Settings.model_fields[name]
    # A switch has its name given, else typer would add --no-NAME.
    spelled = [f"--{name.replace('_', '-')}"] if flag.kind is bool else []
    metavar = flag.metavar or "|".join(_choices(field.annotation)) or None
    option = typer.Option(*spelled, help=field.description, metavar=metavar)
    return inspect.Parameter(name, kind, default=None, annotation=Annotated[flag.kind | None, option])


def _choices(annotation: object) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, UnionType):
        return [value for part in get_args(annotation) for value in _choices(part)]
    return []
