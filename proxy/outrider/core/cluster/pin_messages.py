"""The parts of command answers by which members tell each other of pins; see `command_messages`."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.core.cluster.wire_forms import WireError, seconds, text, truth, whole
from outrider.core.model import ObjectRef, VersionIdentity, quoted_etag

OBJECTS_MAX = 1000
"""Objects in one answer."""

PinnedObject = tuple[ObjectRef, VersionIdentity]
"""An object, and the identity of its version. The ETag has no quotes where the LIST showed none."""


@dataclass(frozen=True, slots=True)
class PinTold:
    """A pin that a member has, or that ended. `at`: when it was given, or ended."""

    owner: str
    name: str
    at: float
    has_ended: bool


@dataclass(frozen=True, slots=True)
class PinPage:
    """Some of the objects of a pin. `body`: the client's list. `more`: there are further ones."""

    client: str
    at: float
    body: bytes
    objects: Sequence[PinnedObject]
    more: bool


def pins_told(pins: Iterable[PinTold]) -> dict[str, Any]:
    return {"pins": [[pin.owner, pin.name, pin.at, pin.has_ended] for pin in pins]}


def parse_pins(told: dict[str, Any]) -> Sequence[PinTold]:
    """Raises WireError."""
    pins = told.get("pins")
    if not isinstance(pins, list) or not all(isinstance(pin, list) and len(pin) == 4 for pin in pins):
        raise WireError("pins: not of their form")
    fields = (dict(zip(("owner", "name", "at", "ended"), pin, strict=True)) for pin in pins)
    return [
        PinTold(text(pin["owner"], "owner"), text(pin["name"], "name"), seconds(pin, "at"), truth(pin, "ended"))
        for pin in fields
    ]


def page_told(page: PinPage) -> dict[str, Any]:
    return {
        "client": page.client, "at": page.at, "list": base64.b64encode(page.body).decode(), "more": page.more,
        "objects": [[*ref, identity.etag, identity.size] for ref, identity in page.objects],
        "modified": [identity.modified for _, identity in page.objects],
    }  # fmt: skip


def parse_page(told: dict[str, Any]) -> PinPage:
    """Raises WireError."""
    objects = told.get("objects")
    if not isinstance(objects, list) or len(objects) > OBJECTS_MAX:
        raise WireError("objects: not a list, or too long")
    # Members before 0.3 tell no dates.
    dates = told.get("modified", [""] * len(objects))
    if not isinstance(dates, list) or len(dates) != len(objects):
        raise WireError("modified: not a list, or of another length")
    try:
        body = base64.b64decode(text(told.get("list"), "list"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError("list: no base64") from error
    return PinPage(
        text(told.get("client"), "client"), seconds(told, "at"), body, list(map(_object, objects, dates)),
        truth(told, "more"),
    )  # fmt: skip


def _object(told: object, date: object) -> PinnedObject:
    if not isinstance(told, list) or len(told) != 4:
        raise WireError("objects: not of their form")
    bucket, key, etag, modified = (text(field, "objects") for field in (*told[:3], date))
    if not bucket or not key or quoted_etag(etag) is None:
        raise WireError("objects: no name, or no ETag")
    return ObjectRef(bucket, key), VersionIdentity(etag, whole({"size": told[3]}, "size"), modified)
