"""`outrider unpin`: let go what was pinned."""

from __future__ import annotations

import typer

from outrider.cli import options, steering
from outrider.core.insight.bottleneck import in_words


def unpin(
    urls: steering.Urls = None,
    from_file: steering.FromFile = None,
    name: steering.Name = None,
    endpoint: steering.Endpoint = None,
    as_json: steering.AsJson = False,
    config: options.Config = None,
) -> None:
    """End a pin, by the list that was pinned or by its name. What it held stays on disk until room is needed.

    \b
    outrider unpin s3://bucket/eval/
    outrider unpin --name hot
    """
    # A name that was made up from a list means nothing to whoever gave the list.
    which = f"called {name}" if name else "of this list"
    key = f"pin/{steering.name_of(name, steering.list_of(urls, from_file))}"
    proxy = steering.Proxy(endpoint, config)
    told = proxy.get(key, missing=f"there is no pin {which}; `outrider pin` shows the pins")
    proxy.delete(key)
    if as_json:
        steering.show_json(told)
    else:
        typer.echo(f"unpinned {told['name']}: {in_words(told['reserved_bytes'])} are no longer reserved")
