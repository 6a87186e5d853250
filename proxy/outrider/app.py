"""The life of a proxy: it is put together, serves, drains, and saves its state for the next start."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress

from aiohttp.abc import AbstractResolver
from aiohttp.web_server import Server

from outrider import __version__
from outrider.adapters.disk import memory_dir
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.disk import open_all
from outrider.adapters.disk.recovery import Recovery
from outrider.adapters.origin import aws_config
from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.origin.endpoint import DEFAULT_REGION, aws_url
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.adapters.origin.receivers import most_receivers
from outrider.adapters.process.cpu_clock import cpu_times
from outrider.adapters.process.file_reload import follow
from outrider.adapters.process.listening import bind, bind_packets, naming
from outrider.adapters.process.port_tls import PortTls
from outrider.adapters.process.recent_errors import keep_recent_errors
from outrider.adapters.process.system import give_back_memory, raise_open_files_limit, usable_cores
from outrider.adapters.state import learned_file, warmup_file
from outrider.composition import MachineLoad, Outrider, Resources, compose, make_traces, traced
from outrider.core.block_layout import BLOCKS_FEW
from outrider.core.cache.descriptor_budget import DescriptorBudget, TooFewDescriptors
from outrider.core.cache.memory_budget import MemoryShares
from outrider.core.cache.scrub_pace import ROUND_S, ScrubPace
from outrider.core.insight.next_step import Setup
from outrider.engine.ahead.prefetch import Prefetch
from outrider.engine.fill.patience import Patience
from outrider.engine.status.held_datasets import held_datasets
from outrider.engine.status.overview import Overview
from outrider.engine.tasks.background import background
from outrider.http.admin.server import AdminServer
from outrider.http.control.lender import Lender
from outrider.http.wire.acceptor import BACKLOG, Listener
from outrider.metrics import Metrics
from outrider.origin_oddities import OriginOddities
from outrider.ports import Clock
from outrider.settings import Settings, SettingsError

log = logging.getLogger(__name__)

# How long a start waits for its index. A snapshot of ten thousand blocks is read in less, and the first reads are then
# hits. A directory that takes longer is indexed while reads are served.
_INDEX_WAIT_S = 0.25
# A start does not wait at all for a longer snapshot: 100,000 blocks take two seconds.
_INDEX_WAIT_BYTES_MAX = 1024 * 1024
# The planner learns of hits this much later at most: far less than it takes to read a shard.
_TICK_S = 0.05
# A block that was being read when it was to be dropped is dropped this much later at most.
_UPKEEP_S = 0.25
# A start after a crash reads the headers of the blocks that landed in the last seconds.
_NOTE_S = 10.0
# Free memory is given back at most this often, once so many blocks have come or gone: tables grow, and leave gaps.
_GIVE_BACK_S, _GIVE_BACK_BLOCKS = 10.0, 1000
# A stop waits so long for fills: a block whose last byte was just sent may lack only its name on disk.
_LAST_FILLS_S = 0.5
# A stop waits so long for a disk that lacks the pins to take them.
_LAST_PINS_S = 2.0
# After the drain, connections and the requests on them have this long to end.
_SHUTDOWN_S = 1.0
# In the cache directory, where others than this user and root find nothing.
_SOCKET = "descriptors"
_OPEN_FILES = "the limit on open files (`ulimit -n`)"
# The work after the drain takes far less if the disk answers; the snapshot adds its time for each block.
_LAST_ACTS_S = 5.0
_SNAPSHOT_BLOCK_S = 1e-4


def last_acts_s(outrider: Outrider) -> float:
    """How long a stop may take after its drain; a stop that takes longer hangs."""
    return _LAST_ACTS_S + len(outrider.store) * _SNAPSHOT_BLOCK_S


@asynccontextmanager
async def running(
    settings: Settings, hurry: asyncio.Event | None = None, *, wall_clock: Clock = time.time,
    resolver: AbstractResolver | None = None, clock: Clock = time.monotonic, patience: Patience | None = None,
) -> AsyncIterator[Outrider]:  # fmt: skip
    """A proxy that serves until the context ends. Then it drains, until `hurry` is set at the latest, and saves a
    snapshot of its index.

    `wall_clock`: the machine's; `resolver` None: the machine's. Tests of a machine with a wrong clock or resolver pass
    others. Tests of what a proxy does later pass another monotonic `clock`, and a `patience` without waits.

    Raises:
        UnusableCacheDir, SettingsError: it cannot start with these settings, or with this limit on open files.
        OSError: an address cannot be bound.
    """
    for name in settings.retired:
        log.warning("retired setting ignored", extra={"setting": name})
    if (why := aws_config.missing_profile(os.environ)) is not None:
        raise SettingsError(why)
    descriptors = _descriptors(settings)
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        traces = await make_traces(settings, stack)
        stack.enter_context(keep_recent_errors(metrics.recent_errors))
        metrics.info.labels(__version__).set(1)
        metrics.started_at.set(wall_clock())
        directories = stack.enter_context(_directories(settings))
        tasks = await stack.enter_async_context(background())
        credentials = AwsCredentials(settings.listen)
        region = settings.region or await credentials.region() or DEFAULT_REGION
        endpoint = settings.origin or aws_url(region, os.environ)
        shares = MemoryShares.of(settings.buffer_bytes, descriptors.exchanges)
        oddities = OriginOddities(endpoint, metrics)
        cores = usable_cores()
        receivers = most_receivers(cores, settings.receivers)
        origin = HttpOrigin(
            endpoint, region, credentials, metrics, wall_clock, connections=shares.exchanges, receivers=receivers,
            read_timeout_s=settings.origin_timeout_s, resolver=resolver, oddities=oddities,
            refused=credentials.refused,
        )  # fmt: skip
        await origin.open()
        stack.push_async_callback(origin.close)
        setup = Setup(
            cores, receivers, is_https=endpoint.startswith("https:"),
            connections_by=_limit_of_connections(settings, descriptors, shares),
            fills_by="`fills`" if descriptors.fills == settings.fills else _OPEN_FILES,
        )  # fmt: skip
        machine = MachineLoad(setup, lambda: cpu_times(lambda: origin.receiver_pids), lambda: origin.waiting > 0)
        resources = Resources(
            metrics, directories, credentials, traced(origin, traces), oddities, shares, tasks, stack, descriptors,
            traces, clock, wall_clock, patience or Patience(clock=clock, patience_s=settings.origin_patience_s),
            machine, _peer_socket(settings, stack),
        )  # fmt: skip
        outrider, recovery = compose(settings, resources)
        _warn_of_few_blocks(outrider)
        outrider.region = region
        if settings.tls_cert is not None and settings.tls_key is not None:
            outrider.tls = PortTls(settings.tls_cert, settings.tls_key)
        waits = sum(each.snapshot_bytes() for each in directories if each.missing is None) <= _INDEX_WAIT_BYTES_MAX
        endless = {
            tasks.spawn(_recover(outrider, recovery), "recovery"),
            tasks.spawn(_tick(outrider.prefetch, outrider.overview), "prefetch"),
            tasks.spawn(_upkeep(outrider), "upkeep"),
            tasks.spawn(_copy_pins(outrider), "copies of the pins"),
            tasks.spawn(_give_back(outrider), "free memory"),
            # One for each disk: those of one that hangs wait for it.
            *(tasks.spawn(_note(recovery, number), f"notes of disk {number}") for number in range(len(directories))),
            *(
                tasks.spawn(follow(what, read, outrider.bell.sleep), f"changes of {what}")
                for what, read in _read_again(outrider, origin)
            ),
            *(
                tasks.spawn(_watch(outrider, recovery, number), f"disk {number}")
                for number in range(len(directories) if len(directories) > 1 else 0)
            ),
        }
        if waits:
            with suppress(TimeoutError):
                async with asyncio.timeout(_INDEX_WAIT_S):
                    await outrider.indexed.wait()
        if outrider.cluster is not None:
            endless |= await outrider.cluster.begin(stack, outrider.bell.sleep)
            await outrider.cluster.settled()
        listener = await _serve(outrider, stack)
        where = ", ".join(str(directory.root) for directory in directories)
        log.info("ready", extra={"listen": outrider.listen, "admin": outrider.admin, "origin": origin.endpoint,
                                 "cache_dir": where, "version": __version__})  # fmt: skip
        try:
            yield outrider
        finally:
            outrider.ready = False
            listener.close()
            if outrider.cluster is not None:
                await outrider.cluster.members.leave()
            outrider.origin_reader.stop_waiting()
            await _drain(outrider, hurry or asyncio.Event())
            await tasks.wait(_LAST_FILLS_S, apart_from=endless)
            under_way = outrider.control.maintenance.under_way()
            # Readers may outlast the drain, and blocks that they fetch from here on would be missing in the snapshot.
            outrider.store.stopping = True
            outrider.prefetch.stop()
            await tasks.stop()
            await recovery.save()
            first = outrider.store.working_disks[0]
            await learned_file.save(first.directory, outrider.planner.registry, first.work)
            await warmup_file.save(first.directory.warmups, under_way, first.work)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_PINS_S):
                    await outrider.control.maintenance.pinning.copy()


def _read_again(outrider: Outrider, origin: HttpOrigin) -> Iterator[tuple[str, Callable[[], bool]]]:
    """The files that may change while the proxy runs, by the settings that name them. See `follow`."""
    if outrider.settings.auth == "sigv4":
        yield "clients", outrider.senders.read
    if outrider.tls is not None:
        yield "tls_cert", outrider.tls.read
    if (authority := origin.authority) is not None:
        yield authority[0], origin.read_authority


def _descriptors(settings: Settings) -> DescriptorBudget:
    try:
        return DescriptorBudget.of(
            raise_open_files_limit(), clients_max=settings.max_connections,
            exchanges_max=settings.origin_connections, fills_max=settings.fills,
        )  # fmt: skip
    except TooFewDescriptors as error:
        raise SettingsError(f"{error}. Raise it: ulimit -n, LimitNOFILE=.") from error


def _warn_of_few_blocks(outrider: Outrider) -> None:
    least = BLOCKS_FEW * outrider.settings.block_size
    if outrider.settings.policy != "none" and outrider.store.capacity_bytes < least:
        do = f"set --cache-size to {-(-least // 2**20)}MiB or more, or make --block-size smaller"
        log.warning("the cache has room for fewer than four blocks", extra={"do": do})


def _limit_of_connections(settings: Settings, descriptors: DescriptorBudget, shares: MemoryShares) -> str:
    """The lowest of the limits on connections to the origin."""
    if shares.exchanges < descriptors.exchanges:
        return "`buffer_bytes`"
    return "`origin_connections`" if descriptors.exchanges == settings.origin_connections else _OPEN_FILES


async def _recover(outrider: Outrider, recovery: Recovery) -> None:
    await recovery.index()
    outrider.indexed.set()
    if outrider.cluster is not None:
        outrider.cluster.members.ready()
    outrider.control.maintenance.pinning.resume()
    for disk in outrider.store.working_disks:
        # A stop before all of them are resumed leaves the file to the next start.
        await outrider.control.maintenance.resume(await disk.work.run(warmup_file.load, disk.directory.warmups))
        await warmup_file.remove(disk.directory.warmups, disk.work)
    if outrider.settings.scrub_bandwidth:
        await recovery.scrub(ScrubPace(outrider.settings.scrub_bandwidth, ROUND_S))


async def _note(recovery: Recovery, number: int) -> None:
    while True:
        await asyncio.sleep(_NOTE_S)
        await recovery.note(number)


async def _watch(outrider: Outrider, recovery: Recovery, number: int) -> None:
    await outrider.indexed.wait()
    await recovery.watch(number)


async def _tick(prefetch: Prefetch, overview: Overview) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        await prefetch.tick()
        overview.tick()


async def _upkeep(outrider: Outrider) -> None:
    while True:
        await asyncio.sleep(_UPKEEP_S)
        await outrider.store.sweep()
        outrider.control.maintenance.pinning.check_again()


async def _copy_pins(outrider: Outrider) -> None:
    while len(outrider.store.disks) > 1:
        await asyncio.sleep(_UPKEEP_S)
        await outrider.control.maintenance.pinning.copy()


async def _give_back(outrider: Outrider) -> None:
    blocks = 0
    while True:
        await asyncio.sleep(_GIVE_BACK_S)
        if abs(len(outrider.store) - blocks) >= _GIVE_BACK_BLOCKS:
            blocks = len(outrider.store)
            await asyncio.to_thread(give_back_memory)


async def _serve(outrider: Outrider, stack: AsyncExitStack) -> asyncio.Server | Listener:
    """Open both ports. Returns the listener of the S3 port."""
    settings = outrider.settings
    token = settings.admin_token.get_secret_value() if settings.admin_token else None
    admin = AdminServer(
        outrider.metrics, lambda: outrider.ready, outrider.status.whole, token, settings.client_timeout_s,
        lambda: held_datasets(outrider.prefetch.learned()),
        None if outrider.cluster is None else outrider.cluster.owners,
        None if outrider.cluster is None else outrider.cluster.map.document,
    )  # fmt: skip
    stack.push_async_callback(_shut_down, admin)
    with naming("--admin", settings.admin):
        at_admin, outrider.admin = await _listen(admin, settings.admin)
    stack.callback(at_admin.close)
    stack.push_async_callback(_shut_down, outrider.server)
    listener: asyncio.Server | Listener
    if outrider.tls is not None:
        with naming("--listen", settings.listen):
            bound = bind(*_host_and_port(settings.listen))
        listener = Listener(
            [bound], outrider.server, outrider.metrics.refused_connections, port="s3",
            connections_max=outrider.server.accepted_max, connected=lambda: outrider.server.connected,
            tls=outrider.tls.context,
        )  # fmt: skip
        outrider.listen = f"{_host(settings.listen)}:{listener.number}"
        stack.callback(listener.abort)
    else:
        with naming("--listen", settings.listen):
            listener, outrider.listen = await _listen(outrider.server, settings.listen)
    stack.callback(listener.close)
    if outrider.lender is not None:
        _lend(outrider.lender, [disk.directory for disk in outrider.store.disks])
    outrider.ready = True
    return listener


def _lend(lender: Lender, directories: Sequence[BlockDir]) -> None:
    """Without the socket, mounts send GETs. Calls on a remote disk may hang, and would hang the mount."""
    local = [directory for directory in directories if directory.missing is None and not directory.is_remote]
    if not local:
        return
    path = local[0].tmp.absolute() / _SOCKET
    try:
        lender.serve(bind_packets(path.parent, path.name), str(path))
    except OSError as error:
        log.info("mounts get no descriptors", extra={"error": str(error)})


def _peer_socket(settings: Settings, stack: AsyncExitStack) -> socket.socket | None:
    """The socket of the peer port, which does not listen yet: its number is announced to the other members. None: the
    node is alone."""
    if settings.peer_listen_at is None:
        return None
    with naming("--peer-listen", settings.peer_listen_at):
        return stack.enter_context(bind(*_host_and_port(settings.peer_listen_at)))


async def _listen(server: Server, address: str) -> tuple[asyncio.Server, str]:
    """By the loop's own `create_server`: aiohttp's runners import a router, middlewares and file responses, a megabyte
    in all. Without TLS a connection is the server's from its first moment, and is bounded there."""
    host, port = _host_and_port(address)
    loop = asyncio.get_running_loop()
    if ":" in host:
        # The loop's own socket at `::` would take IPv6 alone.
        listener = await loop.create_server(server, sock=bind(host, port), backlog=BACKLOG)
    else:
        listener = await loop.create_server(server, host, port, backlog=BACKLOG)
    return listener, f"{_host(address)}:{listener.sockets[-1].getsockname()[1]}"


async def _shut_down(server: Server) -> None:
    # A connection that was accepted in this turn of the loop reaches the server in the next.
    await asyncio.sleep(0)
    server.pre_shutdown()
    await server.shutdown(_SHUTDOWN_S)


def _host(address: str) -> str:
    return address.rpartition(":")[0]


def _host_and_port(address: str) -> tuple[str, int]:
    return _host(address).strip("[]"), int(address.rpartition(":")[2])


async def _drain(outrider: Outrider, hurry: asyncio.Event) -> None:
    """Let requests under way end, for as long as the settings allow or until `hurry` is set. Idle connections are
    closed at once."""
    outrider.server.pre_shutdown()
    waits = [asyncio.ensure_future(_idle(outrider)), asyncio.ensure_future(hurry.wait())]
    await asyncio.wait(waits, timeout=outrider.settings.drain_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if outrider.server.in_flight:
        log.warning("stopping with requests under way", extra={"requests": outrider.server.in_flight})


async def _idle(outrider: Outrider) -> None:
    """Returns once neither clients nor other members read."""
    await outrider.server.idle()
    if outrider.cluster is not None:
        await outrider.cluster.server.idle()


@contextmanager
def _directories(settings: Settings) -> Iterator[list[BlockDir]]:
    """The cache directories, locked; a directory on the tmpfs is removed at the end."""
    memory = settings.cache_in_memory
    directories = open_all([memory_dir.make()] if memory else [path.expanduser() for path in settings.cache_dir])
    try:
        yield directories
    finally:
        for directory in directories:
            directory.close()
            if memory:
                memory_dir.remove(directory.root)
