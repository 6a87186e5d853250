"""`outrider mount`: a bucket as files, through a running proxy or one of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider.adapters.disk.block_dir import UnusableCacheDir
from outrider.adapters.origin import aws_config
from outrider.adapters.origin.endpoint import DEFAULT_REGION
from outrider.adapters.process.system import (
    come_first,
    end_within,
    keep_collections_short,
    keep_memory_small,
    new_event_loop,
    set_up_logs,
)
from outrider.app import last_acts_s, running
from outrider.cli import aws_environment
from outrider.cli.admin_port import STATUS_URL
from outrider.cli.load_settings import load, refused
from outrider.cli.mount import missing, mounting
from outrider.cli.mount.fuse_clients import FUSE_CLIENTS, FuseProgram, Mount
from outrider.cli.mount.missing import CannotMount
from outrider.cli.mount.running_proxy import There, Who, look_up_proxy
from outrider.cli.run import child_process
from outrider.cli.run.child_environment import for_child
from outrider.cli.run.own_proxy import check_origin, environment_for, reachable, settings_of
from outrider.cli.run.stderr import flush_stderr, say
from outrider.cli.run.summary import Summary, SummaryForm, report
from outrider.cli.settings_flags import ALL, Config, Flags, with_settings
from outrider.settings import Settings, SettingsError

ClientName = Literal["outrider", "rclone", "mount-s3", "s3fs"]


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy to read through: its endpoint, the region to sign for, the environment of its clients, and how long it
    believes a version, in seconds."""

    endpoint: str
    region: str
    environ: dict[str, str]
    believed_s: float


@with_settings(*ALL)
def mount(
    url: Annotated[str, typer.Argument(metavar="s3://BUCKET/PREFIX", help="The objects that become files.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="An empty directory, which exists.")],
    flags: Flags,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- CMD]", help="A command to run while it is mounted.")
    ] = None,
    client: Annotated[ClientName, typer.Option(help="The FUSE client. Default: Outrider's own.")] = "outrider",
    endpoint: Annotated[
        str | None,
        typer.Option(help="S3 port of a running Outrider; default: AWS_ENDPOINT_URL, if one is there.", metavar="URL"),
    ] = None,
    allow_other: Annotated[bool, typer.Option("--allow-other", help="Other users may read it, too.")] = False,
    config: Config = None,
    summary: Annotated[SummaryForm, typer.Option(help="Form of the summary of a proxy of its own.")] = "text",
) -> None:
    """Mount objects as files, read-only, for jobs that open paths.

    Reads go through the Outrider at AWS_ENDPOINT_URL. If there is none, one is started, as `outrider run` does.

    With CMD it is unmounted when CMD ends, with its status; without, at Ctrl-C or SIGTERM.

    \b
    outrider mount s3://bucket/train/ ./train -- python train.py ./train
    outrider mount --cache-dir /data/cache s3://bucket/ /mnt/bucket
    """
    # The parser takes `--` away only before the first argument.
    command = command[1:] if command and command[0] == "--" else command
    bucket, prefix = _bucket_and_prefix(url)
    place = os.path.realpath(directory)
    try:
        found, program, helper = _ready(client, place)
        there = _running_at(endpoint, flags)
    except CannotMount as error:
        say(str(error))
        raise typer.Exit(1) from error
    if there is None:
        settings = settings_of(flags, config)
        set_up_logs(settings.log_level, settings.log_format)
        keep_memory_small()
        keep_collections_short()
        proxy = _of_its_own(settings, bucket, prefix, summary)
    else:
        freshness = None if flags["freshness"] else there.freshness_under(bucket, prefix)
        proxy = _running(there, (freshness or load(flags, config).freshness_under(bucket, prefix)).ttl_s)

    def started(by: Proxy, is_ending: Callable[[], bool]) -> AbstractAsyncContextManager[mounting.FuseClient]:
        mount = Mount(bucket, prefix, place, by.endpoint, by.region, by.believed_s, allow_other)
        argv, environ = [program, *found.argv(mount)], {**by.environ, **found.environ(mount, by.environ)}
        return mounting.mounted(argv, environ, place, helper, is_ending)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = runner.run(_mounted(proxy, started, command, f"{url} is at {directory}, by {found.name}"))
    flush_stderr()
    raise typer.Exit(status)


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    """The prefix is empty or ends with a slash."""
    scheme, _, rest = url.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise refused(ValueError(f"{url} is not s3://BUCKET or s3://BUCKET/PREFIX."))
    return bucket, f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def _ready(name: str, place: str) -> tuple[FuseProgram, str, str]:
    """The client, its program, and the program that unmounts.

    Raises:
        CannotMount
    """
    facts = missing.facts()
    if (why := missing.complaint(facts)) is not None:
        raise CannotMount(why)
    assert facts.helper is not None
    if mounting.is_dead(place):
        say(f"{place} is a mount whose client has died: it is unmounted")
        mounting.unmount(place, facts.helper)
    if (why := missing.complaint_about(Path(place))) is not None:
        raise CannotMount(why)
    client = next(client for client in FUSE_CLIENTS if client.name == name)
    program = _program(client)
    if program is None:
        raise CannotMount(f"there is no {name} ({client.source}). Without --client, Outrider's own is taken.")
    return client, program, facts.helper


def _program(client: FuseProgram) -> str | None:
    if client.source is None:
        return sys.executable
    # A wheel puts its programs beside the interpreter, which needs no activated environment to be found.
    beside = Path(sys.executable).with_name(client.name)
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(client.name)


def _running_at(endpoint: str | None, flags: Flags) -> There | None:
    """The running proxy; None: one has to be started.

    Raises:
        CannotMount: there is none at `endpoint`, or nobody at the endpoint that the environment names, or the
            certificates to trust cannot be read.
    """
    if endpoint is None and flags["origin"] is not None:
        return None
    named = ("--endpoint", endpoint) if endpoint else aws_environment.endpoint_in(os.environ)
    if named is None:
        return None
    there = look_up_proxy(named[1], os.environ)
    if there.who is Who.NOBODY:
        raise CannotMount(f"nobody answers at {named[1]} ({named[0]}). Is that proxy started, and its port right?")
    if there.who is Who.OUTRIDER:
        return there
    if endpoint is not None:
        raise CannotMount(f"the server at {endpoint} is no Outrider. Without --endpoint, one is started.")
    return None


@asynccontextmanager
async def _running(there: There, believed_s: float) -> AsyncIterator[Proxy]:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    region = region or aws_config.in_profile(os.environ, "region")
    environ = for_child(
        os.environ, endpoint=there.endpoint, admin=os.environ.get(STATUS_URL, ""), region=region,
        needs_keys=not aws_environment.names_credentials(os.environ),
    )  # fmt: skip
    if not environ[STATUS_URL]:
        del environ[STATUS_URL]
    yield Proxy(there.endpoint, region or DEFAULT_REGION, environ, believed_s)


@asynccontextmanager
async def _of_its_own(settings: Settings, bucket: str, prefix: str, form: SummaryForm) -> AsyncIterator[Proxy]:
    try:
        async with running(settings) as outrider:
            # The AWS chain is walked while the client starts, so that the first read need not wait for it.
            checking = asyncio.create_task(check_origin(outrider), name="origin")
            environ = await environment_for(outrider)
            believed_s = settings.freshness_under(bucket, prefix).ttl_s
            try:
                yield Proxy(reachable(outrider.endpoint), outrider.region, environ, believed_s)
            finally:
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)
            end_within(settings.drain_s + last_acts_s(outrider), 1)
    except (UnusableCacheDir, SettingsError) as error:
        raise refused(error) from error
    except OSError as error:
        raise refused(OSError(f"cannot start: {error}")) from error
    report(Summary.of(outrider), form)


async def _mounted(
    through: AbstractAsyncContextManager[Proxy],
    started: Callable[[Proxy, Callable[[], bool]], AbstractAsyncContextManager[mounting.FuseClient]],
    command: list[str] | None,
    done: str,
) -> int:
    """Mount, and unmount when `command` has ended; None: at a signal, or when the client has died. Returns the exit
    status."""
    signals = child_process.Signals()
    signals.install()
    try:
        async with through as proxy, started(proxy, signals.ending.is_set) as client:
            if signals.ended_by is not None:
                return 128 + signals.ended_by
            client.ended.add_done_callback(_report_death)
            try:
                if command:
                    process = child_process.start(command, proxy.environ)
                    signals.to(process)
                    come_first()  # now, since the command would inherit it
                    return child_process.status_of(await child_process.ended(process))
                come_first()
                say(f"{done}; Ctrl-C unmounts")
                return await _until_a_signal(client, signals)
            finally:
                client.ended.remove_done_callback(_report_death)
    except (child_process.CannotStart, CannotMount) as error:
        say(str(error))
        return error.status if isinstance(error, child_process.CannotStart) else 1
    finally:
        signals.remove()


def _report_death(ended: asyncio.Future[int]) -> None:
    say(f"the FUSE client ended with status {ended.result()}: all reads of the mount fail from now on")


async def _until_a_signal(client: mounting.FuseClient, signals: child_process.Signals) -> int:
    """0: a signal came; 1: the client died."""
    coming = asyncio.create_task(signals.ending.wait())
    await asyncio.wait((coming, client.ended), return_when=asyncio.FIRST_COMPLETED)
    coming.cancel()
    return 0 if signals.ended_by is not None else 1
