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
class _Flag:
    """`metavar` None: the choices of the setting, if it has a fixed set of them. `kind` is what typer makes of it."""

    metavar: str | None = None
    kind: Any = str


# The settings that are flags, in the order of --help. All others are set in the environment or the file.
_FLAGS: Mapping[str, _Flag] = {
    "origin": _Flag("URL"),
    "region": _Flag(),
    "listen": _Flag("HOST:PORT"),
    "admin": _Flag("HOST:PORT"),
    "cache_dir": _Flag("DIR|memory", list[str]),
    "cache_size": _Flag("BYTES|%"),
    "min_free": _Flag("BYTES|%"),
    "block_size": _Flag("BYTES"),
    "auth": _Flag(),
    "clients": _Flag("FILE", Path),
    "domain": _Flag("NAME", list[str]),
    "tls_cert": _Flag("FILE", Path),
    "tls_key": _Flag("FILE", Path),
    "peers": _Flag("SOURCE"),
    "peer_listen": _Flag("HOST:PORT"),
    "peer_address": _Flag("HOST:PORT"),
    "peer_name": _Flag("NAME"),
    "peer_key_file": _Flag("FILE", Path),
    "peer_zone": _Flag("NAME"),
    "peer_domain": _Flag(),
    "peer_tls_cert": _Flag("FILE", Path),
    "peer_tls_key": _Flag("FILE", Path),
    "peer_tls_ca": _Flag("FILE", Path),
    "freshness": _Flag("immutable|ttl:S|always"),
    "policy": _Flag(),
    "prefetch": _Flag(),
    "verify": _Flag(),
    "receivers": _Flag("COUNT"),
    "traces": _Flag(kind=bool),
    "log_level": _Flag(),
    "log_format": _Flag(),
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
