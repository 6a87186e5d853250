"""The message by which a member passes a maintenance command on to the other owners of the blocks, and its answer. Both
are JSON; see `peer_control`."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

from outrider.core.cluster.wire_forms import NAME, WireError, as_json, json_object, matched, seconds, text

COMMAND_PATH = "/-/maintenance"
COMMAND_BYTES_MAX = 6 * 1024 * 1024
"""The longest body of a command: the longest list of objects, in base64."""

FOLDERS = ("warm", "pin", "evict", "verify", "plan")
# "begin" of a pin comes from members of 0.2 alone, and changes nothing.
VERBS = ("put", "get", "cancel", "delete", "begin", "list", "objects")


@dataclass(frozen=True, slots=True)
class Command:
    """`folder`, `name`, `body`: as the client gave them to `sender`. `owner`: the client's access key; empty: it has
    none. `bytes_per_s`: the receiver's share of the bandwidth; 0: no limit. `at`: when the client gave it, in seconds
    since 1970 by the clock of that member; 0: that does not matter."""

    sender: str
    verb: str
    folder: str
    owner: str
    name: str
    body: bytes = b""
    bytes_per_s: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """`told`: the progress of the member's part; None: it has no such command. `error`: why it did not act; empty: it
    did. `code`: the S3 code of the error."""

    told: dict[str, Any] | None = None
    error: str = ""
    code: str = ""


def command_body(command: Command) -> bytes:
    return as_json({
        "from": command.sender, "verb": command.verb, "folder": command.folder, "owner": command.owner,
        "name": command.name, "list": base64.b64encode(command.body).decode(), "rate": command.bytes_per_s,
        "at": command.at,
    })  # fmt: skip


def parse_command(body: bytes) -> Command:
    """Raises WireError."""
    told = json_object(body)
    verb, folder, name = (text(told.get(field), field) for field in ("verb", "folder", "name"))
    if verb not in VERBS or folder not in FOLDERS or not name:
        raise WireError("verb, folder or name: unknown")
    try:
        wanted = base64.b64decode(text(told.get("list"), "list"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError("list: no base64") from error
    sender, owner = matched(NAME, told.get("from"), "from"), text(told.get("owner"), "owner")
    # A rate has the form and the bounds of a time.
    return Command(sender, verb, folder, owner, name, wanted, seconds(told, "rate"), seconds(told, "at"))


def answer_body(answer: CommandAnswer) -> bytes:
    return as_json({"told": answer.told, "error": answer.error, "code": answer.code})


def parse_answer(body: bytes) -> CommandAnswer:
    """Raises WireError."""
    fields = json_object(body)
    told = fields.get("told")
    if told is not None and not isinstance(told, dict):
        raise WireError("told: not an object")
    return CommandAnswer(told, text(fields.get("error"), "error"), text(fields.get("code"), "code"))
