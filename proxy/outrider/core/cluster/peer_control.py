"""The bodies of hellos and forgets: JSON. Fields of later versions of the wire, which this code does not know, are
ignored."""

from __future__ import annotations

import re

from outrider.core.cluster.member import Hello, Member
from outrider.core.cluster.peer_messages import Forget
from outrider.core.cluster.wire_forms import (
    NAME,
    WORD,
    WireError,
    as_json,
    json_object,
    matched,
    seconds,
    text,
    truth,
    whole,
)
from outrider.core.model import ObjectRef

HELLO_PATH, FORGET_PATH = "/-/hello", "/-/forget"
BODY_BYTES_MAX = 1024 * 1024
"""The longest body of a hello or a forget."""

_ADDRESS = re.compile(r"[A-Za-z0-9._:%\[\]-]{1,255}:[0-9]{1,5}", re.ASCII)


def hello_body(hello: Hello) -> bytes:
    member = hello.member
    return as_json({
        "name": member.name, "address": member.address, "zone": member.zone, "weight": member.weight_bytes,
        "cluster": member.cluster_id, "wire": list(member.wire), "boot": hello.boot, "ring": hello.ring,
        "forgets": hello.forgets, "clock": hello.clock_s, "ready": hello.is_ready, "leaving": hello.is_leaving,
    })  # fmt: skip


def parse_hello(body: bytes) -> Hello:
    """Raises WireError."""
    told = json_object(body)
    wire = told.get("wire")
    if not isinstance(wire, list) or len(wire) != 2:
        raise WireError("wire: not two versions")
    lowest, highest = (whole({"wire": version}, "wire") for version in wire)
    member = Member(
        matched(NAME, told.get("name"), "name"), matched(_ADDRESS, told.get("address"), "address"),
        matched(WORD, told.get("zone"), "zone"), whole(told, "weight"),
        matched(WORD, told.get("cluster"), "cluster"), (lowest, highest),
    )  # fmt: skip
    return Hello(
        member, whole(told, "boot"), matched(WORD, told.get("ring"), "ring"), whole(told, "forgets"),
        seconds(told, "clock"), is_ready=truth(told, "ready"), is_leaving=truth(told, "leaving"),
    )  # fmt: skip


def forget_body(message: Forget) -> bytes:
    """The body of a forget. Names that are too many for one are replaced by their buckets."""
    names = [name if isinstance(name, str) else [name.bucket, name.key] for name in message.names]
    told = {
        "from": message.sender, "boot": message.boot, "number": message.number, "names": names,
        "doubt": message.in_doubt,
    }  # fmt: skip
    body = as_json(told)
    if len(body) <= BODY_BYTES_MAX:
        return body
    buckets = {name if isinstance(name, str) else name.bucket for name in message.names}
    return as_json(told | {"names": sorted(buckets)})


def parse_forget(body: bytes) -> Forget:
    """Raises WireError."""
    told = json_object(body)
    names = told.get("names")
    if not isinstance(names, list):
        raise WireError("names: not a list")
    return Forget(
        matched(NAME, told.get("from"), "from"), whole(told, "boot"), whole(told, "number"),
        tuple(_name_of(name) for name in names), in_doubt=truth(told, "doubt"),
    )  # fmt: skip


def _name_of(name: object) -> ObjectRef | str:
    if isinstance(name, list) and len(name) == 2 and all(name):
        bucket, key = name
        return ObjectRef(text(bucket, "names"), text(key, "names"))
    if not name:
        raise WireError("names: an empty one")
    return text(name, "names")
