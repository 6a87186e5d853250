"""`outrider pin`: bring objects, and keep them."""

from __future__ import annotations

import typer

from outrider.cli import options, steering


def pin(
    urls: steering.Urls = None,
    from_file: steering.FromFile = None,
    wait: steering.Wait = True,
    name: steering.Name = None,
    endpoint: steering.Endpoint = None,
    as_json: steering.AsJson = False,
    config: options.Config = None,
) -> None:
    """Reserve room in the cache for objects, bring them, and never let them go; without a list, show the pins.

    Refused, with the numbers, when they do not fit next to the other pins. Pins outlive a restart.

    `outrider unpin` with the same list, or with --name, ends one.

    \b
    outrider pin s3://bucket/eval/
    outrider pin 's3://bucket/train-{000000..000099}.tar' --name hot
    """
    body = steering.list_of(urls, from_file)
    proxy = steering.Proxy(endpoint, config)
    if not body and not name:
        steering.show_all(proxy.get("status.json")["pins"], as_json)
        return
    key = f"pin/{(name := steering.name_of(name, body))}"
    try:
        if body:
            proxy.put(key, body)
        if not wait:
            steering.show(proxy.get(key), as_json)
            return
        told = steering.follow(proxy, key, quiet=as_json)
    except KeyboardInterrupt:
        typer.echo(f"outrider: the room is reserved, and filled in the proxy; `outrider unpin --name {name}` ends it",
                   err=True)  # fmt: skip
        raise typer.Exit(130) from None
    steering.conclude(told, as_json)
