"""`outrider stats`: shows live what the proxy does, which side is slow, and how many bytes the cache saved."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outrider.cli.admin_port import NoStatus, Status
from outrider.cli.cluster import line
from outrider.cli.ls import of_tenant
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.cli.status_client import AsJson, RunningProxy, ago, console, shown
from outrider.core.text import in_words

_SOURCES = (
    ("disk", "disk: hits"), ("flight", "while being fetched"), ("peer", "other members"), ("origin", "past the cache"),
)  # fmt: skip
# The same as on the dashboard: yellow is slower than it could be, red has failed or will.
_COLOURS = {"good": "green", "slower": "yellow", "bad": "red"}
_READERS_MAX = 12
_SILENT_S = 20.0


@with_settings("admin")
def stats(
    flags: Flags,
    config: Config = None,
    once: Annotated[bool, typer.Option("--once", help="Show it once, and exit.")] = False,
    as_json: AsJson = False,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two updates.")] = 1.0,
) -> None:
    """Show the activity of the proxy at --admin: live on a terminal until Ctrl-C, else once.

    \b
    outrider stats
    outrider stats --once
    outrider stats --json | jq .verdict.text
    """
    proxy = RunningProxy(flags, config)
    status = proxy.status_or_exit()
    if as_json:
        typer.echo(json.dumps(status, indent=2))
        return
    if once or not sys.stdout.isatty():
        console().print(view(status))
        return
    try:
        with Live(view(status), console=console(), auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every)
                try:
                    live.update(view(proxy.status()), refresh=True)
                except NoStatus as error:
                    live.update(Text(str(error)), refresh=True)
    except KeyboardInterrupt:
        pass


def view(status: Status) -> RenderableType:
    verdict = status["verdict"]
    # An older proxy shows neither level nor next step.
    colour = _COLOURS.get(verdict.get("level", ""))
    parts: list[RenderableType] = [
        Text(f"outrider {status['version']} in front of {shown(status['origin'] or 'AWS S3')}, "
             f"up {ago(status['uptime_s'])}", style="dim"),
        Text(shown(verdict["text"]), style=f"bold {colour}" if colour else "dim"),
        *(Text(shown(step)) for step in [verdict.get("next")] if step),
        *(Text(shown(alert), style="bold red") for alert in verdict.get("alerts", ())),
        Text(),
        _bandwidth(status),
        Text(),
        _facts(status),
        Text(),
        _readers(status["readers"]),
    ]  # fmt: skip
    if oddities := _oddities(status):
        parts += [Text(), oddities]
    if status["errors"]:
        last = status["errors"][0]
        times = f" ({last['times']} times)" if last["times"] > 1 else ""
        detail = f": {shown(last['detail'])}" if last["detail"] else ""
        is_warning = last["level"] == "warning"
        words = f"last {'warning' if is_warning else 'error'}: {shown(last['what'])}{times}{detail}"
        parts += [Text(), Text(words, style="" if is_warning else "red")]
    return Group(*parts)


def _bandwidth(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (("source", "left"), ("now", "right"), ("since start", "right")):
        table.add_column(name, justify=justify, min_width=14)  # type: ignore[arg-type]
    throughput, served = status["throughput"], status["served_bytes"]
    # An older proxy has no members, and one that is alone shows none.
    sources = [each for each in _SOURCES if each[0] != "peer" or status.get("cluster") is not None]
    rows = [(label, throughput.get(name), served[name]) for name, label in sources]
    rows.append(("out of the bucket", throughput.get("bucket"), status["origin_bytes"]))
    for label, rates, total in rows:
        table.add_row(label, f"{in_words(rates[-1] if rates else 0)}/s", in_words(total))
    return table


def _facts(status: Status) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    total = sum(status["served_bytes"].values())
    hits = f"{100 * status['served_bytes']['disk'] / total:.1f} % of the bytes" if total else "nothing served yet"
    disk = status["disk"]
    sizes = "  ".join(
        f"{in_words(float(size) * disk['budget_bytes'])} {100 * ratio:.0f} %"
        for size, ratio in status["hit_ratio_by_size"].items()
    )
    table.add_row("hits", hits)
    table.add_row("saved", _saved(status["saved"]))
    table.add_row("disk", f"{in_words(disk['used_bytes'])} of {in_words(disk['budget_bytes'])}")
    # An older proxy has one disk, and does not show it.
    disks = status.get("disks", ())
    for each in disks if len(disks) > 1 else ():
        table.add_row("", shown(_of_disk(each)))
    table.add_row("ahead", _ahead(status["prefetch"]))
    if status.get("cluster") is not None:
        table.add_row("cluster", line(status["cluster"]))
    # An older proxy does not show them.
    for number, tenant in enumerate(status.get("tenants", ())):
        words = f"{of_tenant(tenant, disk['budget_bytes'])}, {in_words(tenant['bytes_s'])}/s now"
        table.add_row("" if number else "tenants", words)
    table.add_row("cache size", f"would hit: {sizes}" if sizes else "known from the second epoch on")
    return table


def _saved(saved: Status) -> str:
    """Only what was saved counts as such; what was spent stands behind it."""
    size, gets, dollars = saved["egress_bytes"], saved["gets"], saved["egress_dollars"] + saved["request_dollars"]
    gains = [in_words(size)] if size > 0 else []
    gains += [f"{gets:,} GETs and HEADs"] if gets > 0 else []
    # Half a cent is no cent.
    gains += [f"${dollars:,.2f}"] if dollars >= 0.005 else []
    # An older proxy does not show it.
    costs = [saved.get("spent") or f"spent {in_words(-size)} ahead"] if size < 0 else []
    costs += [f"{-gets:,} GETs and HEADs more than readers asked for"] if gets < 0 else []
    costs += [f"${-dollars:,.2f} more than without the cache"] if dollars <= -0.005 else []
    return "; ".join([", ".join(gains) or "nothing yet", *costs])


def _ahead(ahead: Status) -> str:
    now = f"{in_words(ahead['window_bytes'])} being fetched" if ahead["window_bytes"] else "nothing being fetched"
    if not ahead["fetched_bytes"]:
        return f"{now}; nothing fetched ahead so far"
    wasted = in_words(ahead["wasted_bytes"]) if ahead["wasted_bytes"] else "none"
    return f"{now}; {in_words(ahead['fetched_bytes'])} fetched ahead so far, {wasted} of it evicted unread"


def _of_disk(disk: Status) -> str:
    held = f"{disk['directory']}: {in_words(disk['used_bytes'])} of {in_words(disk['budget_bytes'])}"
    return held if disk["state"] == "works" else f"{held}, {disk['state']} {disk['error']}".rstrip()


def _oddities(status: Status) -> Text | None:
    """How the origin differs from AWS S3, and how many reads stayed uncached; None: nothing to show."""
    # An older proxy shows neither.
    lines = [shown(odd["text"]) for odd in status.get("origin_oddities", ())]
    known = {odd["kind"] for odd in status.get("origin_oddities", ())}
    others = {why: count for why, count in status.get("uncached_reads", {}).items() if why not in known}
    lines += [f"{count:,} reads uncached: {why}" for why, count in others.items()]
    return Text("\n".join(lines)) if lines else None


def _readers(readers: list[Status]) -> RenderableType:
    active = [each for each in readers if each["silent_s"] <= _SILENT_S or each.get("reads_under_way")]
    if not active:
        return Text("nobody reads", style="dim")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("reader", overflow="fold")
    table.add_column("rate", justify="right", no_wrap=True)
    table.add_column("stall", justify="right", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for reader in active[:_READERS_MAX]:
        table.add_row(
            Text(shown(f"{reader['name']} s3://{reader['bucket']}/{reader['dataset']}")),
            f"{in_words(reader['bytes_s'])}/s",
            "-" if reader["stall"] is None else f"{100 * reader['stall']:.0f} %",
            Text(_of_reader(reader)),
        )
    return table


def _of_reader(reader: Status) -> str:
    waiting_s = reader.get("waiting_s")
    if reader["silent_s"] > _SILENT_S and waiting_s is not None:
        return f"waiting for {ago(waiting_s)}"
    return shown(reader["verdict"])
