"""The S3 client of the commands for a running proxy: plain S3 calls to its control bucket, as `aws s3` makes them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn
from urllib.parse import urlsplit

import typer
from botocore import UNSIGNED
from botocore.config import Config as ClientConfig
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, SSLError
from botocore.exceptions import ConnectionError as NoConnectionError
from botocore.session import Session
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from outrider.cli import aws_environment
from outrider.cli.load_settings import load
from outrider.core.maintenance.progress import expected_bytes
from outrider.core.s3.operation import CONTROL_BUCKET
from outrider.core.text import in_words, part_of

# A pin is answered after a HEAD for each of its objects.
_ANSWER_TIMEOUT_S = 600
_CONNECT_TIMEOUT_S = 5
# Each poll is a line in the proxy's log, so those of a long job are rare: once in a twentieth of its time so far.
_POLL_S, _POLL_S_MAX = 0.25, 5.0
_FAILURES_SHOWN = 50
# After so long without progress, a failing bucket is reported.
_STANDSTILL_S = 2.0
_LOOKS = "looks for the objects"
_DENIED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed")

Urls = Annotated[
    list[str] | None,
    typer.Argument(
        help="s3://BUCKET/KEY, s3://BUCKET/PREFIX/, or a template like s3://BUCKET/train-{000000..001281}.tar",
        metavar="[URL]...",
    ),
]
FromFile = Annotated[
    Path | None, typer.Option("--from-file", help="File with such a list, one per line, # for comments; - is stdin.")
]
Name = Annotated[str | None, typer.Option(help="Name in the proxy; default: made from the list.")]
Endpoint = Annotated[
    str | None,
    typer.Option(help="The proxy's S3 port; default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, --listen.", metavar="URL"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer of the proxy as JSON.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all objects are on disk, and show progress.")]


# The session, the credentials to sign with (None: unsigned), and the region.
Identity = tuple[Session, Any, str | None]


class NoServerError(Exception):
    """No server listens at that address."""


class ControlClient:
    """The control bucket of the running proxy. A refusal, or no proxy at all, is printed on stderr and ends the command
    with 1."""

    def __init__(self, endpoint: str | None, config: Path | None, identity: Identity | None = None) -> None:
        """`identity` None: that of the environment."""
        self.endpoint = endpoint or _endpoint(config)
        session, credentials, region = identity or _identity()
        self._keys = "no keys" if credentials is None else f"{credentials.access_key} ({credentials.method})"
        try:
            self._client = session.create_client(
                "s3", endpoint_url=self.endpoint, region_name=region or "us-east-1",
                config=ClientConfig(
                    s3={"addressing_style": "path"}, retries={"max_attempts": 0}, proxies={},
                    connect_timeout=_CONNECT_TIMEOUT_S, read_timeout=_ANSWER_TIMEOUT_S,
                    signature_version=UNSIGNED if credentials is None else None,
                ),
            )  # fmt: skip
        except ValueError as error:
            typer.echo(f"outrider: --endpoint {self.endpoint}: {error}", err=True)
            raise typer.Exit(2) from error

    def put(self, key: str, body: bytes, **metadata: str | None) -> None:
        """`metadata` that is None is left out."""
        given = {name: value for name, value in metadata.items() if value is not None}
        more = {"Metadata": given} if given else {}
        self._call_or_fail(lambda: self._client.put_object(Bucket=CONTROL_BUCKET, Key=key, Body=body, **more))

    def get(self, key: str, *, missing: str = "it is gone: was the proxy restarted?") -> dict[str, Any]:
        """`missing`: the text to print if there is no such object."""
        answer = self._call_or_fail(lambda: self._client.get_object(Bucket=CONTROL_BUCKET, Key=key), missing)
        report: dict[str, Any] = json.loads(answer["Body"].read())
        return report

    def delete(self, key: str) -> None:
        self._call_or_fail(lambda: self._client.delete_object(Bucket=CONTROL_BUCKET, Key=key))

    def is_listening(self) -> bool:
        """Whether a server listens at the endpoint."""
        try:
            self._call(lambda: self._client.get_object(Bucket=CONTROL_BUCKET, Key="status.json"))
        except NoServerError:
            return False
        return True

    def _call_or_fail(self, call: Callable[[], Any], missing: str = "") -> Any:
        try:
            return self._call(call, missing)
        except NoServerError as error:
            failed(
                f"no Outrider at {self.endpoint}: {error}. Start one with `outrider serve`, run this under "
                "`outrider run --`, or give --endpoint or AWS_ENDPOINT_URL."
            )

    def _call(self, call: Callable[[], Any], missing: str = "") -> Any:
        try:
            answer = call()
            self._check(answer)
        except ClientError as error:
            self._check(error.response)
            refusal = error.response["Error"]
            code, message = refusal.get("Code", "?"), refusal.get("Message", "")
            if missing and code == "NoSuchKey":
                failed(missing)
            keys = f" Signed with {self._keys}; the proxy's clients file has the keys and their grants."
            failed(f"{code}: {message}{keys if code in _DENIED else ''}")
        except SSLError as error:
            failed(f"{error}. Set AWS_CA_BUNDLE to a PEM file with its authority, if the certificate is not trusted.")
        except (HTTPClientError, NoConnectionError, OSError) as error:
            raise NoServerError(str(error)) from error
        except BotoCoreError as error:
            failed(str(error))
        return answer

    def _check(self, answer: dict[str, Any]) -> None:
        if answer["ResponseMetadata"].get("HTTPHeaders", {}).get("server") != "outrider":
            failed(f"at {self.endpoint} there is a server, but no Outrider: give --endpoint, or set AWS_ENDPOINT_URL.")


def at_each_address(endpoint: str | None, config: Path | None) -> list[ControlClient]:
    """A proxy for each address of the endpoint's host, in their order. Ends the command if there is none."""
    url = urlsplit(endpoint or _endpoint(config))
    try:
        found = socket.getaddrinfo(url.hostname, url.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        failed(f"{url.geturl()} has no address: {error}")
    hosts = sorted({str(address[4][0]) for address in found})
    port = "" if url.port is None else f":{url.port}"
    # A client with a session of its own takes a tenth of a second to make.
    identity = _identity()
    return [
        ControlClient(f"{url.scheme}://{f'[{host}]' if ':' in host else host}{port}", config, identity)
        for host in hosts
    ]


def _identity() -> Identity:
    """Credentials that cannot be loaded count as none: a proxy in loopback mode needs no signature."""
    session = Session()
    if not aws_environment.names_credentials(os.environ):
        return session, None, session.get_config_variable("region")
    try:
        credentials = session.get_credentials()
        if credentials is not None:
            credentials.get_frozen_credentials()
        return session, credentials, session.get_config_variable("region")
    except (BotoCoreError, ClientError) as error:
        typer.echo(f"outrider: no credentials ({error}), asking unsigned", err=True)
        # A session that ignores AWS_PROFILE: the client would look for a missing profile again, and fail.
        return Session({"profile": (None, None, None, None)}), None, None


def _endpoint(config: Path | None) -> str:
    if (named := aws_environment.endpoint_in(os.environ)) is not None:
        return named[1]
    settings = load({}, config)
    return f"{'http' if settings.tls_cert is None else 'https'}://{settings.listen}"


def failed(text: str) -> NoReturn:
    typer.echo(f"outrider: {text}", err=True)
    raise typer.Exit(1)


def list_of(urls: Sequence[str] | None, from_file: Path | None) -> bytes:
    """The list of URLs, one per line; empty: none was given."""
    lines = list(urls or ())
    if from_file is not None:
        try:
            lines.append(sys.stdin.read() if str(from_file) == "-" else from_file.read_text())
        except (OSError, UnicodeDecodeError) as error:
            typer.echo(f"outrider: --from-file {from_file}: {error}", err=True)
            raise typer.Exit(2) from error
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def name_of(name: str | None, body: bytes) -> str:
    """`name`, else a name made from the list: the same list again means the same warm-up or pin."""
    if not name and not body:
        typer.echo("outrider: nothing is named: give a URL, --from-file or --name.", err=True)
        raise typer.Exit(2)
    return name or f"cli-{hashlib.sha256(body).hexdigest()[:12]}"


def show_json(report: object) -> None:
    typer.echo(json.dumps(report, indent=2))


def show_all(jobs: Sequence[dict[str, Any]], kind: str, as_json: bool) -> None:
    """Print one line for each warm-up or pin. `kind`: which of them it is, in words."""
    if as_json:
        show_json(jobs)
        return
    if not jobs:
        typer.echo(f"There is no {kind}.")
    for job in jobs:
        show(job, False)


def show(job: dict[str, Any], as_json: bool) -> None:
    """Print the progress of one warm-up or pin."""
    if as_json:
        show_json(job)
        return
    objects, size = job["objects"], job["bytes"]
    words = [part_of(objects["on_disk"], objects["wanted"], "object")]
    if job["state"] == "running" and not objects["wanted"]:
        words = [_LOOKS]
    words += [f"{in_words(size['on_disk'])} of {in_words(size['wanted'])}"] if size["wanted"] else []
    words += [f"{in_words(job['reserved_bytes'])} reserved"] if job.get("reserved_bytes") else []
    typer.echo(f"{job['name']}  {job['state']}  {', '.join(words)}")


def carry_out(
    proxy: ControlClient, key: str, body: bytes, *, wait: bool, as_json: bool, ended_by: str, **metadata: str | None
) -> None:  # fmt: skip
    """Begin the warm-up or pin `key` with the list `body` (empty: it is there already), and print its end, or with
    `wait` False its progress. `ended_by`: the command that ends it. Exits as `conclude` does; on Ctrl-C with 130."""
    kind = {"warm": "warm-up"}.get(folder := key.partition("/")[0], folder)
    try:
        if body:
            proxy.put(key, body, **metadata)
        if not wait:
            show(proxy.get(key), as_json)
            return
        report = follow(proxy, key, quiet=as_json)
    except KeyboardInterrupt:
        typer.echo(f"outrider: the {kind} goes on in the proxy; `{ended_by}` ends it", err=True)
        raise typer.Exit(130) from None
    conclude(report, as_json)


def follow(proxy: ControlClient, key: str, *, quiet: bool) -> dict[str, Any]:
    """Wait for the end of a warm-up or pin, with a progress bar of the bytes on disk. Returns its last report. If a
    failing bucket holds it up, that is printed once."""
    seen, since = None, (began := time.monotonic())
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as bar:
        line = bar.add_task(key.partition("/")[0], total=None, text="")
        while (report := proxy.get(key))["state"] == "running":
            on_disk = report["bytes"]["on_disk"]
            bar.update(line, total=expected_bytes(report) or None, completed=on_disk, text=progress_in_words(report))
            if (now_seen := (on_disk, report["objects"])) != seen:
                seen, since = now_seen, time.monotonic()
            elif time.monotonic() - since > _STANDSTILL_S:
                since = math.inf if _has_said_why(proxy, console) else time.monotonic()
            _pause(began)
    return report


def _has_said_why(proxy: ControlClient, console: Console) -> bool:
    """Print that the bucket fails, if it does. Clients with keys are not shown it. A refusal, too, is printed once."""
    try:
        verdict: dict[str, str] = proxy.get("status.json").get("verdict", {})
    except typer.Exit:
        return True
    is_failing = verdict.get("slow") == "failing"
    if is_failing:
        console.print(f"outrider: {verdict['text']}. {verdict['next']}", markup=False, highlight=False, soft_wrap=True)
    return is_failing


def followed(proxy: ControlClient, key: str) -> dict[str, Any]:
    """Like `follow`, for a verification, which has no objects to show."""
    began = time.monotonic()
    with Console(stderr=True).status(key.partition("/")[0]):
        while (report := proxy.get(key))["state"] == "running":
            _pause(began)
    return report


def _pause(began: float) -> None:
    time.sleep(min(_POLL_S_MAX, max(_POLL_S, (time.monotonic() - began) / 20)))


def progress_in_words(report: dict[str, Any]) -> str:
    objects, eta_s = report["objects"], report["eta_s"]
    if not objects["wanted"]:
        return _LOOKS
    eta = "" if eta_s is None else f", {int(eta_s) // 60}:{int(eta_s) % 60:02} to go"
    return (
        f"{objects['on_disk']}/{objects['wanted']}{'+' if report['listing'] else ''} objects, "
        f"{in_words(report['bytes']['on_disk'])}, {in_words(report['rate_bytes_per_s'])}/s{eta}"
    )


def conclude(report: dict[str, Any], as_json: bool) -> NoReturn:
    """Print how a warm-up or pin ended, its failures on stderr, and exit: 0, or 1 after failures."""
    if as_json:
        show_json(report)
    else:
        objects, size = report["objects"], report["bytes"]
        words = [part_of(objects["on_disk"], objects["wanted"], "object") + " on disk" * bool(objects["wanted"])]
        if size["on_disk"]:
            cached_before = size["on_disk"] - size["fetched"]
            before = f" ({in_words(cached_before)} were there before)" if cached_before > 0 else ""
            words.append(f"{in_words(size['on_disk'])}{before}")
        typer.echo(f"{report['state']}: {', '.join(words)}, in {report['elapsed_s']:.1f} s")
    for note in report.get("notes", ()):
        typer.echo(f"outrider: {note}", err=True)
    show_failures(report)
    raise typer.Exit(0 if report["state"] == "done" else 1)


def nothing_matches(report: dict[str, Any], as_json: bool) -> NoReturn:
    """As `warm`, `pin` and `unpin` do for a list that names nothing, the command fails."""
    if as_json:
        show_json(report)
    failed("no block of these objects is in the cache; `outrider ls` shows the datasets")


def show_failures(report: dict[str, Any]) -> None:
    for failure in report["failures"][:_FAILURES_SHOWN]:
        typer.echo(f"outrider: {failure['object'] or report['name']}: {failure['error']}", err=True)
    if (more := report["objects"]["failed"] - _FAILURES_SHOWN) > 0:
        typer.echo(f"outrider: and {more} more", err=True)
