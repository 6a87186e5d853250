"""Checks of `outrider doctor` on the cluster: the key, the list of members, and a signed hello to each of them.

The hellos come under a name and with a cluster id of their own, so that members answer them and learn nothing from
them: not a member of this node's name that began anew, nor its numbers of forgets.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
import stat
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.adapters.cluster.own_account import own_address, own_name
from outrider.adapters.cluster.peer_client import PeerClient
from outrider.adapters.cluster.peer_key import PeerKey
from outrider.adapters.cluster.peer_tls import PeerTls
from outrider.adapters.cluster.sources import source_of
from outrider.adapters.origin.credentials import AwsCredentials
from outrider.cli.doctor.finding import Diagnosis, fail, ok, warn
from outrider.cli.doctor.origin_checks import place_of
from outrider.cluster_composition import cluster_id
from outrider.core.auth.peer_signature import SKEW_S
from outrider.core.block_layout import BlockLayout
from outrider.core.cluster.member import WIRE_VERSIONS, ListedMember, Member
from outrider.core.cluster.messages import Hello
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.cluster.peer_wire import Requester
from outrider.core.s3.conditions import parse_http_date
from outrider.core.text import counted
from outrider.metrics import Metrics
from outrider.settings import Settings, SettingsError

# A source that is well gives its list in far less.
_LIST_TIMEOUT_S = 5.0
_DATE_TIMEOUT_S = 2.0
_HELLOS_AT_ONCE = 32
# Signatures are refused whose time is off by more than `SKEW_S`; long before that, somebody should know.
_SKEW_WARN_S = 60.0
_NO_CLUSTER = "doctor"


async def peer_findings(
    settings: Settings, *, is_running: bool, environ: Mapping[str, str] = os.environ
) -> AsyncIterator[Diagnosis]:
    """Nothing without `peers`. `is_running`: a member with these settings runs here."""
    if settings.peers is None or settings.peer_listen_at is None or settings.peer_key_file is None:
        return
    try:
        key = PeerKey(settings.peer_key_file)
    except SettingsError as error:
        yield fail("peer key", str(error), "Copy the key of the other members here, readable for this user alone.")
        return
    yield check_key(settings, len(key.accepted))
    port = int(settings.peer_listen_at.rpartition(":")[2])
    try:
        name = own_name(settings, environ, socket.gethostname())
        address = own_address(settings, port, environ)
        tls = PeerTls.of(settings)
        entries = await _listed(settings, port, environ)
    except SettingsError as error:
        yield fail("members", str(error), "Correct the settings of the cluster: the proxy would not start.")
        return
    except _NoListError as error:
        yield fail("members", str(error), "Until it gives one, the last good list counts; a new node stays alone.")
        return
    yield ok("members", f"{settings.peers}: {counted(len(entries), 'member')}")
    endpoint, _ = await place_of(settings, AwsCredentials())
    me = Member(name, address, settings.peer_zone or "", 0, cluster_id(BlockLayout(endpoint, settings.block_size)))
    others = [entry for entry in entries if is_running or entry.address != address]
    answers = await _greeted(me, key, None if tls is None else tls.client, others)
    yield check_own_entry(me, entries, answers, settings.peers)
    for finding in check_names(me, answers, is_running=is_running):
        yield finding
    for answer in answers:
        yield check_answer(answer, me, settings.peer_key_file)


class _NoListError(Exception):
    """The source of members gives no list. The text says why."""


@dataclass(frozen=True, slots=True)
class Greeted:
    """The result of a hello. `hello` None: `failed` says why, and `status`, of an HTTP answer, else 0. `skew_s`: the
    member's clock minus this node's; None: it sent no time."""

    entry: ListedMember
    hello: Hello | None
    failed: PeerFailed | None = None
    skew_s: float | None = None


def check_key(settings: Settings, keys: int) -> Diagnosis:
    path = settings.peer_key_file
    assert path is not None
    mode = stat.S_IMODE(path.expanduser().stat().st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
        return warn(
            "peer key", f"{path}: mode {mode:03o} lets other users of this machine at it",
            f"chmod 600 {path}: who has the key may read every object through the members.",
        )  # fmt: skip
    return ok("peer key", f"{path}: {counted(keys, 'key')}, mode {mode:03o}")


async def _listed(settings: Settings, port: int, environ: Mapping[str, str]) -> Sequence[ListedMember]:
    """The first list, unless the source says before why it gives none. Raises SettingsError, _NoListError."""
    why: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_failure(text: str) -> None:
        if not why.done():
            why.set_result(text)

    async with aclosing(source_of(settings, Metrics(), port, environ, on_outage=on_failure).lists()) as lists:
        first = asyncio.ensure_future(anext(lists))
        either: list[asyncio.Future[Any]] = [first, why]
        await asyncio.wait(either, timeout=_LIST_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            return first.result()
        first.cancel()
        await asyncio.wait([first])
    raise _NoListError(why.result() if why.done() else f"{settings.peers}: no list within {_LIST_TIMEOUT_S:.0f} s")


async def _greeted(
    me: Member, key: PeerKey, tls: ssl.SSLContext | None, entries: Sequence[ListedMember]
) -> list[Greeted]:
    """The results of a hello to each of some members."""
    boot, at_once = time.time_ns(), asyncio.Semaphore(_HELLOS_AT_ONCE)
    greeter = Member(f"doctor-{boot}", me.address, "", 0, _NO_CLUSTER, WIRE_VERSIONS)
    own = Hello(greeter, boot, "", 0, time.time(), is_ready=False)
    client = PeerClient(
        lambda: Requester(greeter.name, "", _NO_CLUSTER), lambda: key.accepted, Metrics(), time.time, boot=boot,
        tls=lambda: tls,
    )  # fmt: skip

    async def greet(entry: ListedMember) -> Greeted:
        async with at_once:
            sent_at = time.time()
            try:
                hello = await client.hello(entry.address, own)
            except PeerFailed as error:
                skew_s = await asyncio.to_thread(_skew_of, entry.address, tls) if error.why == "refused" else None
                return Greeted(entry, None, error, skew_s)
            return Greeted(entry, hello, None, hello.clock_s - (sent_at + time.time()) / 2)

    await client.open()
    try:
        return list(await asyncio.gather(*map(greet, entries)))
    finally:
        await client.close()


def _skew_of(address: str, tls: ssl.SSLContext | None) -> float | None:
    """The clock of a member by the Date of a refusal, to a second; None: it states none."""
    host, _, port = address.rpartition(":")
    at = host.strip("[]"), int(port)
    connection = (
        http.client.HTTPConnection(*at, timeout=_DATE_TIMEOUT_S)
        if tls is None
        else http.client.HTTPSConnection(*at, timeout=_DATE_TIMEOUT_S, context=tls)
    )
    try:
        connection.request("GET", "/")
        date = parse_http_date(connection.getresponse().getheader("date"))
        return None if date is None else date.timestamp() + 0.5 - time.time()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def check_answer(answer: Greeted, me: Member, key: Path) -> Diagnosis:
    """`key`: the file with the key that this node signs with."""
    where = f"{answer.entry.name} at {answer.entry.address}" if answer.entry.name else answer.entry.address
    if answer.hello is None:
        return _refusal(where, answer, key)
    hello, member = answer.hello, answer.hello.member
    where = f"{member.name} at {answer.entry.address}"
    if answer.entry.name not in ("", member.name):
        return fail(
            "member", f"{answer.entry.address}: listed as {answer.entry.name}, and {member.name} answers there",
            "Correct the list, or --peer-name of that node: it is left out until they agree.",
        )  # fmt: skip
    if member.cluster_id != me.cluster_id:
        return fail(
            "member", f"{where}: has another cluster id ({member.cluster_id}, here {me.cluster_id})",
            "Give all members the same --origin and --block-size, and the same version of Outrider.",
        )  # fmt: skip
    if member.wire[1] < WIRE_VERSIONS[0] or WIRE_VERSIONS[1] < member.wire[0]:
        return fail(
            "member", f"{where}: speaks versions {member.wire[0]} to {member.wire[1]} of the wire between members",
            "Run versions of Outrider that are next to each other.",
        )  # fmt: skip
    if answer.skew_s is not None and abs(answer.skew_s) > _SKEW_WARN_S:
        return warn(
            "member", f"{where}: its clock is {_off(answer.skew_s)}; requests are refused beyond {SKEW_S:.0f} s",
            "Set the clocks of both machines (chrony or ntpd).",
        )  # fmt: skip
    if not hello.is_ready or hello.is_leaving:
        return ok("member", f"{where}: answers, and {'is about to stop' if hello.is_leaving else 'reads its index'}")
    return ok("member", f"{where}: answers, zone {member.zone or 'none'}")


def _refusal(where: str, answer: Greeted, key: Path) -> Diagnosis:
    error, port = answer.failed, answer.entry.address.rpartition(":")[2]
    assert error is not None
    if error.why != "refused":
        return fail(
            "member", f"{where}: no answer to a hello: {error}",
            f"See that Outrider runs there with --peers and the key in {key}, and that TCP port {port} is open between "
            "the nodes (its --peer-listen).",
        )  # fmt: skip
    if answer.skew_s is not None and abs(answer.skew_s) > SKEW_S:
        return fail(
            "member", f"{where}: refuses this node: its clock is {_off(answer.skew_s)}",
            "Set the clocks of both machines (chrony or ntpd).",
        )  # fmt: skip
    return fail(
        "member", f"{where}: refuses this node: it has another key than {key} here",
        f"Copy {key} to the --peer-key-file of all members; it is read again within seconds.",
    )  # fmt: skip


def _off(skew_s: float) -> str:
    return f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this one's"


def check_own_entry(me: Member, entries: Sequence[ListedMember], answers: Sequence[Greeted], source: str) -> Diagnosis:
    by_list = [entry for entry in entries if entry.address == me.address or entry.name == me.name]
    by_answer = [answer.entry for answer in answers if answer.hello is not None and answer.hello.member.name == me.name]
    if not by_list and not by_answer:
        return fail(
            "own entry", f"{me.name} at {me.address} is not among the members of {source}",
            "Add this node there, or set --peer-address and --peer-name to the entry that is meant. Others do not ask "
            "a node that is not listed.",
        )  # fmt: skip
    entry = (by_list or by_answer)[0]
    if entry.name not in ("", me.name):
        return fail(
            "own entry", f"{entry.address} is listed as {entry.name}, and this node calls itself {me.name}",
            f"Set --peer-name {entry.name}, or correct the list: others leave this node out.",
        )  # fmt: skip
    return ok("own entry", f"{me.name} at {entry.address}: listed")


def check_names(me: Member, answers: Sequence[Greeted], *, is_running: bool) -> list[Diagnosis]:
    """Names to which several processes answer. This node is one of them, whether it runs or not."""
    places: dict[str, dict[int, str]] = {} if is_running else {me.name: {0: f"{me.address} (this node)"}}
    for answer in answers:
        if answer.hello is not None:
            places.setdefault(answer.hello.member.name, {})[answer.hello.boot] = answer.entry.address
    return [
        fail(
            "names", f"{name} is the name of several members: {', '.join(sorted(at.values()))}",
            "Give each its own --peer-name: only the one that began last is asked.",
        )
        for name, at in sorted(places.items())
        if len(at) > 1
    ]  # fmt: skip
