"""Checked forms of what the members send each other: numbers, texts, JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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


def as_json(told: Mapping[str, object]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()


def json_object(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise WireError("no JSON") from error
    if not isinstance(told, dict):
        raise WireError("no JSON object")
    return told


def matched(pattern: re.Pattern[str], value: object, field: str) -> str:
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise WireError(f"{field}: not of its form")
    return value


def text(value: object, field: str) -> str:
    """A text whose only surrogates are escapes of bytes."""
    if not isinstance(value, str):
        raise WireError(f"{field}: not a text")
    if not value.isascii():
        try:
            raw_bytes(value)
        except UnicodeEncodeError as error:
            raise WireError(f"{field}: not a text") from error
    return value


def number(value: str, field: str) -> int:
    parsed = int(matched(_DECIMAL, value, field))
    if parsed >= NUMBER_MAX:
        raise WireError(f"{field}: too large")
    return parsed


def whole(told: Mapping[str, Any], field: str) -> int:
    value = told.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < NUMBER_MAX:
        raise WireError(f"{field}: not a number")
    return value


def truth(told: Mapping[str, Any], field: str) -> bool:
    value = told.get(field)
    if not isinstance(value, bool):
        raise WireError(f"{field}: neither true nor false")
    return value


def seconds(told: Mapping[str, Any], field: str) -> float:
    value = told.get(field)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= SECONDS_MAX:
        raise WireError(f"{field}: not a time")
    return float(value)
