"""`outrider cluster`: shows the members of the cluster as one node sees them, and who owns the blocks of an object."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from outrider.cli import status_client
from outrider.cli.admin_port import Status
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.cli.status_client import RunningProxy, ago, shown
from outrider.core.text import counted, in_words

ALONE = "This node caches by itself: it was started without --peers."
_STYLES = {"alive": "green", "away": "red", "left_out": "yellow"}
# So many blocks are shown one by one. The shares of the members say more about a larger object.
_BLOCKS_SHOWN = 32


@with_settings("admin")
def cluster(
    flags: Flags,
    config: Config = None,
    as_json: status_client.AsJson = False,
    what: Annotated[str | None, typer.Argument(metavar="who", help="The owners of an object's blocks.")] = None,
    url: Annotated[str | None, typer.Argument(metavar="s3://BUCKET/KEY", help="The object.")] = None,
) -> None:
    """Show the members of the cluster as the node at --admin sees them, or who owns the blocks of an object.

    \b
    outrider cluster
    outrider cluster --json | jq '.members[] | select(.state != "alive").name'
    outrider cluster who s3://my-bucket/train-000000.tar
    """
    if what not in (None, "who") or (what == "who") != (url is not None):
        raise typer.BadParameter("write `outrider cluster`, or `outrider cluster who s3://BUCKET/KEY`.")
    proxy = RunningProxy(flags, config)
    part = proxy.status_or_exit().get("cluster")
    if part is None:
        typer.echo(json.dumps(None) if as_json else ALONE)
        return
    if url is not None:
        part = proxy.answer_or_exit("/cluster/who", object=url)
    if as_json:
        typer.echo(json.dumps(part, indent=2))
    elif url is None:
        _show(part)
    else:
        _show_owners(part)


def line(cluster: Status) -> str:
    """One line about the cluster, for `outrider stats`."""
    count = Counter(member["state"] for member in cluster["members"])
    words = [f"{count['alive']} of {counted(len(cluster['members']), 'member')} alive"]
    words += [f"{count[state]} {state.replace('_', ' ')}" for state in ("away", "left_out") if count[state]]
    words += [f"{shown(name)} is the name of several" for name in cluster.get("names_used_twice", {})]
    traffic = (
        (sum(member["bytes_in"] or 0 for member in cluster["members"]), "from the others"),
        (sum(member["bytes_out"] or 0 for member in cluster["members"]), "to them"),
        (cluster["near_bytes"], "of their blocks kept here"),
    )
    moved = ", ".join(f"{in_words(count)} {what}" for count, what in traffic if count)
    return f"{', '.join(words)}; {moved or 'no bytes between them yet'}"


# -- members ----------------------------------------------------------------------------------------------------------


def _show(cluster: Status) -> None:
    typer.echo(
        f"{shown(cluster['name'])} at {cluster['address']}, zone {shown(cluster['zone']) or 'none'}, "
        f"ring {cluster['ring']}, members from {shown(cluster['source'])}"
    )
    typer.echo(f"{line(cluster)}\n")
    for name, at in cluster.get("names_used_twice", {}).items():
        typer.echo(
            f"WARNING: {shown(name)} is the name of several members: {', '.join(at)}. "
            "Give each its own --peer-name: only the one that began last is asked.\n"
        )
    status_client.console().print(_table(cluster))
    for note in _notes(cluster):
        typer.echo(note)


def _table(cluster: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("member", overflow="fold")
    for name in ("address", "zone", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("since", "cache", "in", "out", "reads", "failed", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ring", no_wrap=True)
    for member in cluster["members"]:
        table.add_row(
            Text(f"{shown(member['name']) or '?'}{' (this node)' if member['is_me'] else ''}"),
            Text(member["address"]),
            Text(shown(member["zone"]) or "-"),
            Text(_state(member), style=_STYLES.get(member["state"], "")),
            "-" if member["since_s"] is None else ago(member["since_s"]),
            in_words(member["weight_bytes"]) if member["weight_bytes"] else "-",
            *_traffic(member),
            Text(_ring(member, cluster["ring"])),
        )
    return table


def _state(member: Status) -> str:
    state = str(member["state"]).replace("_", " ")
    return f"{state}, leaving" if member["is_leaving"] else state


def _ring(member: Status, ring: str) -> str:
    if not member["ring"]:
        return "-"
    # Members of another zone have a ring of their own.
    return "same" if member["ring"] == ring else str(member["ring"])


def _traffic(member: Status) -> list[str]:
    if member["is_me"]:
        return ["-"] * 6
    sizes = ["-" if member[name] is None else in_words(member[name]) for name in ("bytes_in", "bytes_out")]
    counts = ["-" if member[name] is None else f"{member[name]:,}" for name in ("requests", "failures")]
    waits = ["-" if wait is None else f"{1000 * wait:.1f} ms" for wait in member["latency_s"].values()]
    return [*sizes, *counts, *waits]


def _notes(cluster: Status) -> list[str]:
    notes = [
        f"{shown(member['name']) or member['address']}: {shown(member['why'])}"
        for member in cluster["members"]
        if member["why"]
    ]
    if not cluster["is_listed"]:
        notes.append(f"This node is not in the list of {shown(cluster['source'])}: the others do not ask it.")
    if twice := cluster.get("duplicate_fetches"):
        whys = ", ".join(f"{why} {count:,}" for why, count in twice.items())
        notes.append(f"Blocks that this node fetched from the bucket though another member owned them: {whys}.")
    if cluster["ring_disagreements"]:
        notes.append(f"{cluster['ring_disagreements']:,} reads came from members that see another ring.")
    return ["", *notes] if notes else []


# -- owners -----------------------------------------------------------------------------------------------------------


def _show_owners(answer: Status) -> None:
    console = status_client.console()
    typer.echo(
        f"{shown(answer['object'])}: {in_words(answer['size'])} in {counted(answer['blocks'], 'block')} of "
        f"{in_words(answer['block_bytes'])}, version known by {shown(answer['authority'])}\n"
    )
    if answer["blocks"] <= _BLOCKS_SHOWN:
        console.print(_blocks(answer))
        typer.echo()
    console.print(_shares(answer))
    if answer["shares_of_blocks"] < answer["blocks"]:
        typer.echo(f"\nThese are the shares of the first {answer['shares_of_blocks']:,} blocks.")


def _blocks(answer: Status) -> Table:
    alive = set(answer["alive"])
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("block", justify="right")
    for name in ("owner", "then", "asked now", "here"):
        table.add_column(name, overflow="fold")
    for block in answer["owners"]:
        owner, *others = (f"{shown(name)}{'' if name in alive else ' (away)'}" for name in block["owners"])
        table.add_row(
            str(block["index"]), Text(owner), Text(", ".join(others) or "-"), Text(shown(block["asked"])),
            "yes" if block["here"] else "no",
        )  # fmt: skip
    return table


def _shares(answer: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("member", overflow="fold")
    for name in ("blocks", "bytes", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    counted_blocks = answer["shares_of_blocks"]
    for name, share in answer["shares"].items():
        table.add_row(
            Text(shown(name)), f"{share['blocks']:,}", in_words(share["bytes"]),
            f"{100 * share['blocks'] / counted_blocks:.0f} %",
        )  # fmt: skip
    return table
