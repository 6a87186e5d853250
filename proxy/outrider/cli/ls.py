"""`outrider ls`: lists the datasets that the proxy knows, and how much of each is in the cache."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from outrider.cli import status_client
from outrider.cli.settings_flags import Config, Flags, with_settings
from outrider.core.text import in_words


@with_settings("admin")
def ls(
    flags: Flags,
    config: Config = None,
    as_json: status_client.AsJson = False,
    words: Annotated[str, typer.Argument(help="Only datasets whose BUCKET/NAME contains this.")] = "",
) -> None:
    """List the datasets of the proxy at --admin, the most recently read first.

    \b
    outrider ls
    outrider ls train --json
    """
    url, settings = status_client.place_of(flags, config)
    status = status_client.status_or_exit(url, settings)
    datasets = [dataset for dataset in status["datasets"] if words in f"{dataset['bucket']}/{dataset['name']}"]
    if as_json:
        typer.echo(json.dumps({"datasets": datasets, "pins": status.get("pins", [])}, indent=2))
        return
    if not datasets:
        typer.echo("No dataset was read yet." if not words else f"No dataset that was read has {words!r} in its name.")
    else:
        status_client.console().print(_table(datasets))
    hidden = status["datasets_known"] - len(status["datasets"])
    if hidden > 0:
        typer.echo(f"And {hidden:,} more that were read longer ago.")
    for pin in status.get("pins", []):
        here, reserved = in_words(pin["bytes"]["on_disk"]), in_words(pin["reserved_bytes"])
        typer.echo(f"pin {status_client.shown(pin['name'])}: {here} here of {reserved} reserved")


def _verified(dataset: status_client.Status) -> str:
    """The share of the cached bytes that was compared with the bucket's checksums, rounded down: `100 %` is all."""
    # An older proxy does not tell it.
    return f"{int(100 * dataset['verified'])} %" if dataset.get("cached_bytes") and "verified" in dataset else "-"


def _table(datasets: list[status_client.Status]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("dataset", overflow="fold")
    for name in ("objects", "size", "cached", "verified", "read", "hits", "saved", "last read"):
        table.add_column(name, justify="right", no_wrap=True)
    for dataset in datasets:
        known = "objects" in dataset
        epoch = dataset.get("read_this_epoch")
        hits = f"{100 * dataset['hits'] / dataset['requests']:.0f} %" if dataset["requests"] else "-"
        table.add_row(
            Text(
                status_client.shown(
                    f"s3://{dataset['bucket']}/{dataset['name']}" if dataset["bucket"] else dataset["name"]
                )
            ),
            f"{dataset['objects']:,}" if known else "-",
            in_words(dataset["bytes"]) if known else "-",
            f"{100 * dataset['cached']:.0f} %" if known else "-",
            _verified(dataset),
            f"{epoch:,} of {dataset['epoch_objects']:,}" if epoch is not None else "-",
            hits,
            in_words(dataset["saved"]["egress_bytes"]),
            status_client.ago(dataset.get("silent_s")),
        )
    return table
