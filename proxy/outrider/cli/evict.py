"""`outrider evict`: drops objects from the cache now."""

from __future__ import annotations

import typer

from outrider.cli import control_client
from outrider.cli.settings_flags import Config
from outrider.core.text import counted, in_words


def evict(
    urls: control_client.Urls = None,
    from_file: control_client.FromFile = None,
    endpoint: control_client.Endpoint = None,
    as_json: control_client.AsJson = False,
    config: Config = None,
) -> None:
    """Drop the blocks of these objects from the cache. Blocks in use go when their reads end; pinned blocks stay.

    Exits with 1 if there are no such blocks.

    \b
    outrider evict s3://bucket/old-run/
    """
    body = control_client.list_of(urls, from_file)
    proxy = control_client.ControlClient(endpoint, config)
    key = f"evict/{control_client.name_of(None, body)}"
    proxy.put(key, body)
    report = proxy.get(key)
    if not any(report[count] for count in ("blocks", "in_use_blocks", "pinned_blocks")):
        control_client.nothing_matches(report, as_json)
    if as_json:
        control_client.show_json(report)
        return
    if report["blocks"]:
        typer.echo(f"evicted {counted(report['blocks'], 'block')}, {in_words(report['bytes'])}")
    if report["in_use_blocks"]:
        typer.echo(f"not evicted yet: {counted(report['in_use_blocks'], 'block')} in use, until the reads end")
    if report["pinned_blocks"]:
        typer.echo(f"not evicted: {counted(report['pinned_blocks'], 'pinned block')}; `outrider unpin` first")
