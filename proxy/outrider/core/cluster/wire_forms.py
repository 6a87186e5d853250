"""Checked forms of what the members send each other: numbers, texts, and dataclasses as JSON.

The fields of a dataclass have pydantic's types, which check what comes from the wire. A dataclass that this code makes
is not checked.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

from pydantic import Field, PlainValidator, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

M = TypeVar("M")

NUMBER_MAX = 2**63
SECONDS_MAX = 1e10
NAME = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)
"""The name of a member."""
WORD = re.compile(r"[A-Za-z0-9._:-]{0,128}", re.ASCII)
"""A digest, an identity, a zone."""

_DECIMAL = re.compile(r"[0-9]{1,19}", re.ASCII)


class WireError(ValueError):
    """A message that cannot be read, or that is too large to be sent. The text holds no part of it."""


def raw_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def matched(pattern: re.Pattern[str], value: object, field: str) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise WireError(f"{field}: not of its form")
    return value


def text(value: object, field: str = "") -> str:
    """A text whose only surrogates are escapes of bytes."""
    if not isinstance(value, str):
        raise WireError(f"{field}: not a text")
    if not value.isascii():
        try:
            raw_bytes(value)
        except UnicodeEncodeError as error:
            raise WireError(f"{field}: not a text") from error
    return value


def filled(value: object) -> str:
    """A text that is not empty."""
    if value == "":
        raise WireError("an empty name")
    return text(value)


def number(value: str, field: str) -> int:
    parsed = int(matched(_DECIMAL, value, field))
    if parsed >= NUMBER_MAX:
        raise WireError(f"{field}: too large")
    return parsed


def whole(values: Mapping[str, Any], field: str) -> int:
    value = values.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < NUMBER_MAX:
        raise WireError(f"{field}: not a number")
    return value


def truth(values: Mapping[str, Any], field: str) -> bool:
    value = values.get(field)
    if not isinstance(value, bool):
        raise WireError(f"{field}: neither true nor false")
    return value


def seconds(values: Mapping[str, Any], field: str) -> float:
    value = values.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= SECONDS_MAX:
        raise WireError(f"{field}: not a time")
    return float(value)


def _from_base64(value: object) -> bytes:
    return b64decode(text(value), validate=True)


Number = Annotated[int, Field(strict=True, ge=0, lt=NUMBER_MAX)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=SECONDS_MAX)]
Truth = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(strict=True, pattern=f"^{NAME.pattern}$")]
Word = Annotated[str, Field(strict=True, pattern=f"^{WORD.pattern}$")]
Base64 = Annotated[bytes, PlainValidator(_from_base64)]
# pydantic's texts have no escapes of bytes.
Text = Annotated[str, PlainValidator(text)]
Full = Annotated[str, PlainValidator(filled)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Marks a field in whose place the fields of a `form` stand on the wire, among those of the message. The form is
    the class of the value, or has `of` to be made of the value, and `value` to make it."""

    form: Any


def encode(message: object) -> bytes:
    """The JSON of a message. Raises WireError: it has a name that is no text, which only an order may have."""
    return as_json(fields_of(message))


def decode(kind: type[M], body: bytes) -> M:
    """Raises WireError."""
    return of_fields(kind, json_object(body))


def as_json(values: Mapping[str, object]) -> bytes:
    return _ENCODER.encode(values).encode()


def json_object(body: bytes) -> dict[str, Any]:
    """Raises WireError."""
    try:
        values = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise WireError("no JSON") from error
    if not isinstance(values, dict):
        raise WireError("no JSON object")
    return values


def fields_of(message: object) -> dict[str, Any]:
    """The object that `encode` writes as JSON, to be a part of another message. Raises WireError: see `encode`."""
    kind: Any = type(message)
    names, spread = _names(kind)
    values = {alias: getattr(message, name) for name, alias in names.items()}
    values |= {alias: b64encode(value).decode() for alias, value in values.items() if isinstance(value, bytes)}
    for name, form in spread.items():
        value = getattr(message, name)
        values |= fields_of(value if isinstance(value, form) else form.of(value))
    return values


def of_fields(kind: type[M], values: Mapping[str, Any]) -> M:
    """The message of an object that was a part of another message. Each field must be there: one that is missing is
    null, which few forms allow. Others are ignored. Raises WireError."""
    its: Any = kind
    names, spread = _names(its)
    given = {alias: values.get(alias) for alias in names.values()}
    try:
        for name, form in spread.items():
            part = of_fields(form, values)
            given[name] = part.value() if hasattr(form, "value") else part
        return cast(M, _adapter(its).validate_python(given))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise WireError(f"{first['loc'][0]}: not of its form") from None
    except IndexError:
        raise WireError("a number without a name") from None


# Made when they are first needed: a process without a cluster needs none.
@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _names(kind: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The name on the wire of each field, and the form of each one that is spread. Raises TypeError: no dataclass."""
    hints = get_type_hints(kind, include_extras=True)
    names, spread = {}, {}
    for field in fields(kind):
        names[field.name] = field.name
        for mark in get_args(hints[field.name]):
            if isinstance(mark, Spread):
                spread[field.name] = mark.form
                del names[field.name]
            elif isinstance(mark, FieldInfo) and mark.alias:
                names[field.name] = mark.alias
    return names, spread


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=fields_of)
