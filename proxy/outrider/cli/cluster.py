"""`outrider cluster`: shows the members of the cluster as one node sees them, and who owns the blocks of an object."""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from outrider.cli import status_client
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.cli.status_client import Status, ago, shown
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
    place, settings = status_client.place_of(flags, config)
    status = status_client.status_or_exit(place, settings)
    told = status.get("cluster")
    if told is None:
        typer.echo(json.dumps(None) if as_json else ALONE)
        return
    if url is not None:
        told = status_client.answer_or_exit(place, settings, "/cluster/who", {"object": url})
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    elif url is None:
        _show(told)
    else:
        _show_owners(told)


def line(told: Status) -> str:
    """One line about the cluster, for `outrider stats`."""
    count = Counter(member["state"] for member in told["members"])
    words = [f"{count['alive']} of {counted(len(told['members']), 'member')} alive"]
    words += [f"{count[state]} {state.replace('_', ' ')}" for state in ("away", "left_out") if count[state]]
    words += [f"{shown(name)} is the name of several" for name in told.get("names_used_twice", {})]
    came = sum(member["bytes_in"] or 0 for member in told["members"])
    sent = sum(member["bytes_out"] or 0 for member in told["members"])
    return (
        f"{', '.join(words)}; {in_words(came)} from the others, {in_words(sent)} to them, "
        f"{in_words(told['near_bytes'])} of their blocks kept here"
    )


# -- members ----------------------------------------------------------------------------------------------------------


def _show(told: Status) -> None:
    console = status_client.console()
    typer.echo(
        f"{shown(told['name'])} at {told['address']}, zone {shown(told['zone']) or 'none'}, ring {told['ring']}, "
        f"members from {shown(told['source'])}"
    )
    typer.echo(f"{line(told)}\n")
    for name, at in told.get("names_used_twice", {}).items():
        typer.echo(
            f"WARNING: {shown(name)} is the name of several members: {', '.join(at)}. "
            "Give each its own --peer-name: only the one that began last is asked.\n"
        )
    console.print(_table(told))
    for note in _notes(told):
        typer.echo(note)


def _table(told: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("member", overflow="fold")
    for name in ("address", "zone", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("since", "cache", "in", "out", "reads", "failed", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("ring", no_wrap=True)
    for member in told["members"]:
        table.add_row(
            Text(f"{shown(member['name']) or '?'}{' (this node)' if member['is_me'] else ''}"),
            Text(member["address"]),
            Text(shown(member["zone"]) or "-"),
            Text(_state(member), style=_STYLES.get(member["state"], "")),
            "-" if member["since_s"] is None else ago(member["since_s"]),
            in_words(member["weight_bytes"]) if member["weight_bytes"] else "-",
            *_traffic(member),
            Text(_ring(member, told["ring"])),
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


def _notes(told: Status) -> list[str]:
    notes = [
        f"{shown(member['name']) or member['address']}: {shown(member['why'])}"
        for member in told["members"]
        if member["why"]
    ]
    if not told["is_listed"]:
        notes.append(f"This node is not in the list of {shown(told['source'])}: the others do not ask it.")
    if twice := told.get("duplicate_fetches"):
        whys = ", ".join(f"{why} {count:,}" for why, count in twice.items())
        notes.append(f"Blocks that this node fetched from the bucket though another member owned them: {whys}.")
    if told["ring_disagreements"]:
        notes.append(f"{told['ring_disagreements']:,} reads came from members that see another ring.")
    return ["", *notes] if notes else []


# -- owners -----------------------------------------------------------------------------------------------------------


def _show_owners(told: dict[str, Any]) -> None:
    console = status_client.console()
    typer.echo(
        f"{shown(told['object'])}: {in_words(told['size'])} in {counted(told['blocks'], 'block')} of "
        f"{in_words(told['block_bytes'])}, version known by {shown(told['authority'])}\n"
    )
    if told["blocks"] <= _BLOCKS_SHOWN:
        console.print(_blocks(told))
        typer.echo()
    console.print(_shares(told))
    if told["shares_of_blocks"] < told["blocks"]:
        typer.echo(f"\nThese are the shares of the first {told['shares_of_blocks']:,} blocks.")


def _blocks(told: dict[str, Any]) -> Table:
    alive = set(told["alive"])
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("block", justify="right")
    for name in ("owner", "then", "asked now", "here"):
        table.add_column(name, overflow="fold")
    for block in told["owners"]:
        owner, *others = (f"{shown(name)}{'' if name in alive else ' (away)'}" for name in block["owners"])
        table.add_row(
            str(block["index"]), Text(owner), Text(", ".join(others) or "-"), Text(shown(block["asked"])),
            "yes" if block["here"] else "no",
        )  # fmt: skip
    return table


def _shares(told: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("member", overflow="fold")
    for name in ("blocks", "bytes", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    counted_blocks = told["shares_of_blocks"]
    for name, share in told["shares"].items():
        table.add_row(
            Text(shown(name)), f"{share['blocks']:,}", in_words(share["bytes"]),
            f"{100 * share['blocks'] / counted_blocks:.0f} %",
        )  # fmt: skip
    return table
