"""`outrider ls`: lists the datasets that the proxy knows, and how much of each is in the cache."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from outrider.cli.admin_port import Status
from outrider.cli.cluster import ALONE
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.cli.status_client import AsJson, RunningProxy, ago, console, shown
from outrider.core.text import counted, in_words

# So many members have a column each.
_MEMBERS_SHOWN = 8


@with_settings("admin")
def ls(
    flags: Flags,
    config: Config = None,
    as_json: AsJson = False,
    words: Annotated[str, typer.Argument(help="Only datasets whose BUCKET/NAME contains this.")] = "",
    of_cluster: Annotated[bool, typer.Option("--cluster", help="Show which member holds which share of each.")] = False,
) -> None:
    """List the datasets of the proxy at --admin, the most recently read first.

    \b
    outrider ls
    outrider ls train --json
    outrider ls --cluster
    """
    proxy = RunningProxy(flags, config)
    status = proxy.status_or_exit()
    if of_cluster:
        _show_cluster(proxy, status, words, as_json=as_json)
        return
    datasets = [dataset for dataset in status["datasets"] if words in f"{dataset['bucket']}/{dataset['name']}"]
    if as_json:
        others = {name: status.get(name, []) for name in ("pins", "tenants")}
        typer.echo(json.dumps({"datasets": datasets, **others}, indent=2))
        return
    if not datasets:
        typer.echo("No dataset was read yet." if not words else f"No dataset that was read has {words!r} in its name.")
    else:
        console().print(_table(datasets))
        for dataset in datasets:
            # An older proxy does not show it.
            if spent := dataset["saved"].get("spent"):
                typer.echo(f"{_name(dataset)}: {spent}")
    hidden = status["datasets_known"] - len(status["datasets"])
    if hidden > 0:
        typer.echo(f"And {hidden:,} more that were read longer ago.")
    # An older proxy does not show them.
    for tenant in status.get("tenants", []):
        typer.echo(f"tenant {of_tenant(tenant, status['disk']['budget_bytes'])}")
    for pin in status.get("pins", []):
        cached, reserved = in_words(pin["bytes"]["on_disk"]), in_words(pin["reserved_bytes"])
        typer.echo(f"pin {shown(pin['name'])}: {cached} here of {reserved} reserved")


def of_tenant(tenant: Status, capacity_bytes: int) -> str:
    """`capacity_bytes`: the budget of the whole cache."""
    cache, line, cached = tenant["cache_share"], tenant["line_share"], tenant["cached_bytes"]
    words = [] if cached is None else [f"{in_words(cached)} here"]
    if cache is not None:
        words[0] += f" of a share of {in_words(int(cache * capacity_bytes))} ({_percent(cache)})"
        words += ["beyond its share"] if cached > cache * capacity_bytes else []
    words.append(f"{in_words(tenant['served_bytes'])} read")
    words += [] if line is None else [f"{_percent(line)} of the line"]
    return f"{shown(tenant['name'])}: {', '.join(words)}"


def _verified(dataset: Status) -> str:
    """The share of the cached bytes that was compared with the bucket's checksums, rounded down: `100 %` is all."""
    # An older proxy does not show it.
    return f"{int(100 * dataset['verified'])} %" if dataset.get("cached_bytes") and "verified" in dataset else "-"


def _name(dataset: Status) -> str:
    return shown(f"s3://{dataset['bucket']}/{dataset['name']}" if dataset["bucket"] else dataset["name"])


def _table(datasets: list[Status]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("dataset", overflow="fold")
    for name in ("objects", "size", "cached", "verified", "read", "hits", "saved", "last read"):
        table.add_column(name, justify="right", no_wrap=True)
    for dataset in datasets:
        known = "objects" in dataset
        epoch = dataset.get("read_this_epoch")
        hits = f"{100 * dataset['hits'] / dataset['requests']:.0f} %" if dataset["requests"] else "-"
        table.add_row(
            Text(_name(dataset)),
            f"{dataset['objects']:,}" if known else "-",
            in_words(dataset["bytes"]) if known else "-",
            f"{100 * dataset['cached']:.0f} %" if known else "-",
            _verified(dataset),
            f"{epoch:,} of {dataset['epoch_objects']:,}" if epoch is not None else "-",
            hits,
            in_words(saved) if (saved := dataset["saved"]["egress_bytes"]) > 0 else "-",
            ago(dataset.get("silent_s")),
        )
    return table


# -- the cluster ------------------------------------------------------------------------------------------------------


def _show_cluster(proxy: RunningProxy, status: Status, words: str, *, as_json: bool) -> None:
    if status.get("cluster") is None:
        typer.echo(json.dumps(None) if as_json else ALONE)
        return
    answer = proxy.answer_or_exit("/cluster/datasets")
    answer["datasets"] = [each for each in answer["datasets"] if words in f"{each['bucket']}/{each['name']}"]
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    if answer["datasets"]:
        console().print(_map(answer))
    else:
        typer.echo("No member has a dataset." if not words else f"No member has a dataset with {words!r} in its name.")
    members, silent = answer["members"], answer["silent"]
    typer.echo(f"\n{len(members)} of {counted(len(members) + len(silent), 'member')} answered.")
    for each in silent:
        typer.echo(f"{shown(each['name'])} did not answer: {shown(each['why'])}")


def _map(answer: Status) -> Table:
    """A column for each member that holds something; of many members, the one with the most and the one with the
    least."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("dataset", overflow="fold")
    members = answer["members"]
    are_few = len(members) <= _MEMBERS_SHOWN
    names = [Text(shown(name)) for name in members] if are_few else ["most", "least"]
    for name in ("objects", "size", "held", "copies", *names):
        table.add_column(name, justify="right", no_wrap=True)
    for dataset in answer["datasets"]:
        shares = {name: dataset["members"].get(name, {"share": 0.0})["share"] for name in members}
        ordered = sorted(shares.items(), key=lambda each: -each[1])
        cells = [_percent(share) for share in shares.values()]
        if not are_few:
            cells = [f"{shown(name)} {_percent(share)}" for name, share in (ordered[0], ordered[-1])]
        table.add_row(
            Text(shown(f"s3://{dataset['bucket']}/{dataset['name']}")), f"{dataset['objects']:,}",
            in_words(dataset["bytes"]), _percent(dataset["held"]), in_words(dataset["copies_bytes"]),
            *map(Text, cells),
        )  # fmt: skip
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
