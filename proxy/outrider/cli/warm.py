"""`outrider warm`: fetches objects before a job reads them, and shows the progress."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from outrider.cli import control_client
from outrider.cli.settings_flags import Config
from outrider.core.text import part_of


def warm(
    urls: control_client.Urls = None,
    from_file: control_client.FromFile = None,
    wait: control_client.Wait = True,
    rate: Annotated[
        str | None, typer.Option(help="Bytes a second from the bucket at most, like 200MB.", metavar="BYTES")
    ] = None,
    name: control_client.Name = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the warm-up of this list, or of --name.")] = False,
    copies: Annotated[
        str | None,
        typer.Option(
            help="In a cluster, at how many members each block is kept: all, or a number; default: at its owner.",
            metavar="all|N",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Fetch at each address of the endpoint's host, as of a headless Service, and fail if there are fewer.",
        ),
    ] = None,
    endpoint: control_client.Endpoint = None,
    as_json: control_client.AsJson = False,
    config: Config = None,
) -> None:
    """Fetch objects into the cache of the running proxy; without a list, show the warm-ups.

    Objects on disk are not fetched again, so the same command continues an interrupted warm-up.

    Ctrl-C leaves the warm-up running in the proxy; --cancel ends it.

    Exits with 1 and lists the failures, unless all objects are on disk.

    \b
    outrider warm s3://bucket/train/
    outrider warm 's3://bucket/train-{000000..001281}.tar' --rate 200MB --no-wait
    outrider warm --from-file shards.txt
    outrider warm s3://bucket/weights/ --copies all
    """
    body = control_client.list_of(urls, from_file)
    if nodes is not None and (not body or cancel or not wait):
        typer.echo("outrider: --nodes takes a list, and waits for its end", err=True)
        raise typer.Exit(2)
    if nodes is not None and copies is not None:
        typer.echo("outrider: --copies is for the members of a cluster, and --nodes for caches that are none", err=True)
        raise typer.Exit(2)
    if nodes is not None:
        name = control_client.name_of(name, body)
        _at_each(control_client.at_each_address(endpoint, config), nodes, f"warm/{name}", body, rate, as_json)
        return
    proxy = control_client.ControlClient(endpoint, config)
    if not body and not name and not cancel:
        control_client.show_all(proxy.get("status.json")["warmups"], "warm-up", as_json)
        return
    # Only a name that the user gave is shown: one that was made from a list means nothing to the user.
    which = f"called {name}" if name else "of this list"
    key = f"warm/{(name := control_client.name_of(name, body))}"
    if cancel:
        proxy.get(key, missing=f"there is no warm-up {which}; `outrider warm` shows the warm-ups")
        proxy.delete(key)
        return
    ended_by = f"outrider warm --cancel --name {name}"
    control_client.carry_out(proxy, key, body, wait=wait, as_json=as_json, ended_by=ended_by, rate=rate, copies=copies)


def _at_each(
    proxies: Sequence[control_client.ControlClient], nodes: int, key: str, body: bytes, rate: str | None, as_json: bool
) -> None:
    """Each proxy has a cache of its own, and a warm-up. One that fails ends no other, and its reason is on stderr."""
    begun: list[control_client.ControlClient] = []
    for proxy in proxies:
        with suppress(typer.Exit):
            proxy.put(key, body, rate=rate)
            begun.append(proxy)
    reports: list[dict[str, Any]] = []
    for proxy in begun:
        with suppress(typer.Exit):
            report = control_client.follow(proxy, key, quiet=as_json)
            reports.append({"endpoint": proxy.endpoint, **report})
            if not as_json:
                control_client.show({**report, "name": proxy.endpoint}, as_json=False)
            control_client.show_failures(report)
    if as_json:
        control_client.show_json(reports)
    done, wanted = sum(report["state"] == "done" for report in reports), max(nodes, len(proxies))
    typer.echo(f"outrider: done at {part_of(done, wanted, 'node')}", err=True)
    if done < wanted:
        raise typer.Exit(1)
