"""`outrider operator`: places pods near their data, and lets them wait until it is warm."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.adapters.process.system import set_up_logs
from outrider.core.cluster.membership import Domain
from outrider.core.operator.placement import selects
from outrider.core.operator.pod_patch import Offers, Sidecar
from outrider.settings import SettingsError

if TYPE_CHECKING:
    from outrider.adapters.kubernetes.caches import S3Caches
    from outrider.adapters.kubernetes.kube_api import KubeApi
    from outrider.operator_composition import Operator

log = logging.getLogger(__name__)


def operator(
    endpoint: Annotated[
        str, typer.Option(help="The S3 port of the cache, for warm-ups, and what pods get as AWS_ENDPOINT_URL.")
    ],
    cache: Annotated[
        str,
        typer.Option(
            help="The Service of the cache's pods, whose nodes and zones are looked up.", metavar="NAMESPACE/SERVICE"
        ),
    ],
    name: Annotated[
        str, typer.Option(help="Name of its webhook configuration, of its Service and Lease; its Secret is NAME-ca.")
    ] = "outrider-operator",
    namespace: Annotated[str | None, typer.Option(help="Its own; default: the service account's.")] = None,
    webhook_listen: Annotated[
        str, typer.Option(help="The https port for the API server.", metavar="HOST:PORT")
    ] = ":9443",
    listen: Annotated[
        str, typer.Option(help="The http port with /metrics, /healthz and /readyz.", metavar="HOST:PORT")
    ] = ":9484",
    namespace_selector: Annotated[
        str,
        typer.Option(help="The namespaces of its pods, by their labels: the JSON of the selector of its webhook."),
    ] = "{}",
    sidecar_file: Annotated[
        Path | None,
        typer.Option(
            help="JSON with the `container`, the `volumes` and the `endpoint` that inject: sidecar puts into a pod."
        ),
    ] = None,
    s3_port: Annotated[int, typer.Option(help="The S3 port of each cache's pod.")] = 9480,
    admin_port: Annotated[
        int, typer.Option(help="The admin port of each cache's pod; OUTRIDER_ADMIN_TOKEN is its token.")
    ] = 9481,
    peer_domain: Annotated[
        Domain, typer.Option(help="The caches that are one, by the setting of theirs: those of a zone, or all.")
    ] = Domain.ZONE,
) -> None:
    """Place pods near their data in Kubernetes, and let them wait until it is warm.

    Needs the extra `operator` of the package, and what the chart makes with operator.enabled.

    Keys for the cache are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.

    docs/kubernetes.md has labels and annotations.

    \b
    outrider operator --endpoint http://outrider:9480 --cache cache/outrider-peers
    """
    try:
        from outrider.adapters.kubernetes.caches import S3Caches
        from outrider.adapters.kubernetes.kube_api import KubeApi
    except ImportError as error:
        typer.echo(f"outrider: operator needs the extra outrider[operator]: {error}", err=True)
        raise typer.Exit(2) from error
    set_up_logs("info", "json")
    try:
        offers = Offers(endpoint, None if sidecar_file is None else _sidecar(sidecar_file))
        places = _place(webhook_listen, "--webhook-listen"), _place(listen, "--listen")
        namespaces = _selector(namespace_selector)
        of_namespace, slash, service = cache.partition("/")
        if not (of_namespace and slash and service):
            raise SettingsError(f"--cache {cache}: give NAMESPACE/SERVICE")
        kube = KubeApi(namespace)
    except SettingsError as error:
        typer.echo(f"outrider: {error}", err=True)
        raise typer.Exit(2) from error
    caches = S3Caches(
        endpoint, s3_port=s3_port, admin_port=admin_port, admin_token=os.environ.get("OUTRIDER_ADMIN_TOKEN")
    )
    from outrider.operator_composition import Operator

    operator = Operator(
        kube, caches, offers, cache=(of_namespace, service), name=name,
        me=os.environ.get("POD_NAME") or socket.gethostname(), namespaces=namespaces,
        has_zones=peer_domain is Domain.ZONE,
    )  # fmt: skip
    raise typer.Exit(asyncio.run(_serve(operator, kube, caches, places)))


async def _serve(
    operator: Operator, kube: KubeApi, caches: S3Caches, places: tuple[tuple[str, int], tuple[str, int]]
) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with caches, operator.running(*places) as ports:
            log.info("ready", extra={"webhook_port": ports[0], "port": ports[1], "me": operator.me})
            await stop.wait()
    except OSError as error:
        typer.echo(f"outrider: cannot listen: {error}", err=True)
        return 1
    finally:
        await kube.close()
    return 0


def _sidecar(path: Path) -> Sidecar:
    """Raises SettingsError."""
    try:
        sidecar = json.loads(path.read_text())
        container, volumes, endpoint = sidecar["container"], sidecar.get("volumes") or [], sidecar["endpoint"]
        if not isinstance(container["name"], str) or not all(isinstance(each["name"], str) for each in volumes):
            raise TypeError("names are text")
        return Sidecar(container, volumes, str(endpoint))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"--sidecar-file {path}: {error!r}; it needs `container`, `volumes` and `endpoint`"
        ) from error


def _selector(text: str) -> dict[str, Any]:
    """Raises SettingsError."""
    try:
        selector = json.loads(text)
        selects(selector, {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"--namespace-selector {text}: {error!r}; give a LabelSelector of Kubernetes as JSON, like "
            '{"matchLabels": {"team": "vision"}}'
        ) from error
    return dict(selector)


def _place(text: str, flag: str) -> tuple[str, int]:
    """Host and port; the host is "" for all addresses. Raises SettingsError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"{flag} {text}: give HOST:PORT")
    return host.strip("[]"), int(port)
