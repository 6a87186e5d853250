"""Answers the kernel's requests: names and attributes from LISTs and HEADs, bytes from GETs.

The kernel keeps the answers that it gets: names and attributes as long as they are believed, and pages as long as it
has room. OPEN is not known here, after which the kernel opens files by itself. So a file that was read before is read
again without any request here.

The kernel reads no byte after the size that it got. So a size that only a LIST stated, and that is not believed
(`listed.ListTrust`), is given for no time at all: then the kernel asks for the attributes before it opens, looks or
reads, and a HEAD settles them. Each reply to a GET is compared, too. Where one shows that a believed LIST was wrong,
the kernel learns that the attributes are out of date, and asks for them before it reads on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from array import array
from collections.abc import Coroutine
from functools import partial
from itertools import count
from math import inf
from typing import Any

from outrider.mount import messages
from outrider.mount.bucket import MountBucket, Stale
from outrider.mount.listed import ListTrust, ObjectFacts, SettleVerdict, verdict
from outrider.mount.listings import Listings
from outrider.mount.loans import Loans
from outrider.mount.messages import HEADER, READ, Op, Owner
from outrider.mount.nodes import Directory, File, MountNodes, Node, is_name, packed_name
from outrider.mount.reads import FileReads
from outrider.ports import Clock

log = logging.getLogger(__name__)

# Requests that are read before other tasks get their turn.
_AT_ONCE = 16
_SILENT = (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT)
_NOTICES = (*_SILENT, Op.RELEASEDIR, Op.DESTROY)
# A proxy that is away fails each call. One line a minute says why.
_LOG_PAUSE_S = 60.0
# So many names of a directory are looked at for kinds of objects of which LISTs are not believed yet.
_LOOKED_AT = 1000
# Notices to the kernel that are written before other tasks get their turn.
_NOTICES_AT_ONCE = 250
_Bytes = bytes | memoryview


class FileSystem:
    """Serves one mount on the event loop. `ended` is set when it is unmounted."""

    def __init__(
        self, fd: int, bucket: MountBucket, prefix: str, believed_s: float, clock: Clock = time.monotonic,
        loans: Loans | None = None,
    ) -> None:  # fmt: skip
        """`fd`: a descriptor of /dev/fuse, which does not block. `believed_s`: how long names and attributes hold.
        `loans` None: the proxy lends no descriptors."""
        self.ended = asyncio.Event()
        self._fd = fd
        self._bucket = bucket
        self._believed_s = believed_s
        self._clock = clock
        self._nodes = MountNodes(prefix)
        self._trust = ListTrust()
        self._owner = Owner(os.getuid(), os.getgid())
        self._tasks: set[asyncio.Task[Any]] = set()
        # The requests that are not answered yet, by the kernel's number for them.
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._reads = FileReads(bucket, self._spawn, clock, loans)
        self._listings = Listings(bucket, self._nodes, self._spawn, self._holds, clock)
        self._handles = count(1)
        # The numbers of the members of each directory that is open, behind the two dots.
        self._opened: dict[int, array[int]] = {}
        self._request = bytearray(messages.REQUEST_BYTES_MAX)
        self._log_after = -inf

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._fd, self._readable)

    async def stop(self) -> None:
        """Answers no further requests, and those that wait by EINTR. The descriptor may be closed then."""
        asyncio.get_running_loop().remove_reader(self._fd)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                size = os.readv(self._fd, [self._request])
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue  # the request was interrupted before it was read
                asyncio.get_running_loop().remove_reader(self._fd)
                self.ended.set()
                return
            self._take(memoryview(self._request)[:size])

    def _take(self, request: memoryview) -> None:
        _, op, unique, number, _, _, _, _, _ = HEADER.unpack_from(request)
        body = request[HEADER.size :]
        try:
            answer = self._at_once(op, number, body)
        except Exception as error:  # noqa: BLE001 - the top of a request
            self._fail(unique, error)
            return
        if isinstance(answer, Coroutine):
            self._later(unique, answer)
        elif op not in _SILENT:
            self._reply(unique, answer)

    def _at_once(self, op: int, number: int, body: memoryview) -> _Bytes | Coroutine[Any, Any, _Bytes]:
        """The answer, or how to get it. An unknown request is one that the kernel then does by itself."""
        match op:
            case Op.READ:
                _, start, size, _, _, _, _ = READ.unpack_from(body)
                return self._reads.at_once(self._file(number), start, size) or self._read(number, start, size)
            case Op.LOOKUP:
                name = bytes(body).rstrip(b"\0").decode("utf-8", "surrogateescape")
                return self._lookup(self._directory(number), name)
            case Op.GETATTR:
                return self._attributes(self._nodes[number])
            case Op.OPENDIR:
                return self._open_directory(self._directory(number))
            case Op.READDIR | Op.READDIRPLUS:
                handle, offset, size, _, _, _, _ = READ.unpack_from(body)
                return self._entries(number, handle, offset, size, plus=op == Op.READDIRPLUS)
            case Op.STATFS:
                return messages.statfs_reply(self._nodes.files.known_bytes)
            case Op.INIT:
                return messages.init_reply(body)
            case _ if op in _NOTICES:
                self._noted(op, number, body)
                return b""
            case _:
                raise OSError(errno.ENOSYS, "not known")

    def _noted(self, op: int, number: int, body: memoryview) -> None:
        if op in (Op.FORGET, Op.BATCH_FORGET):
            for node, lookups in messages.forgotten(op, number, body):
                self._nodes.forgotten(node, lookups)
            return
        named = messages.named(body)
        if op == Op.RELEASEDIR and self._opened.pop(named, None) is not None:
            self._nodes.closed()
        elif op == Op.INTERRUPT and (task := self._waiting.get(named)) is not None:
            task.cancel()

    def _file(self, number: int) -> File:
        node = self._nodes[number]
        if not isinstance(node, File):
            raise OSError(errno.EISDIR, "a directory")
        return node

    def _directory(self, number: int) -> Directory:
        node = self._nodes[number]
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, "no directory")
        return node

    # -- names and attributes ----------------------------------------------------------------------------------

    def _lookup(self, parent: Directory, name: str) -> bytes | Coroutine[Any, Any, bytes]:
        if self._is_known(parent, name):
            return self._entry(self._nodes.child(parent, name), parent)
        return self._looked_up(parent, name)

    def _is_known(self, parent: Directory, name: str) -> bool:
        """Whether what is known of this name, or that there is no such name, is still believed."""
        node = self._nodes.child(parent, name)
        return self._holds(node.checked_at if isinstance(node, File) else parent.listed_at)

    async def _looked_up(self, parent: Directory, name: str) -> bytes:
        if not is_name(name):
            return messages.absent_reply(self._believed_s)
        if self._believed_s > 0 and self._clock() >= parent.heads_until and not self._holds(parent.listed_at):
            # A page of a LIST says of a thousand names what a HEAD says of one. Names of a directory with more of
            # them are not held up by its other pages.
            await self._listings.of(parent).page()
            if self._is_known(parent, name):
                return self._entry(self._nodes.child(parent, name), parent)
        facts, prefix = await self._bucket.head(parent.prefix + name), f"{parent.prefix}{name}/"
        # A directory hides an object of the same name. An empty object may be there just to mark it.
        is_file = facts is not None and facts.size > 0 and name not in parent.directories
        if not is_file and await self._bucket.has_any(prefix):
            return self._entry(self._nodes.directory(parent, name), parent)
        if facts is not None:
            return self._entry(self._nodes.file(parent, name, facts, self._clock(), settled=True), parent)
        self._nodes.remove(parent, name)
        return messages.absent_reply(0.0)

    def _entry(self, node: Node | None, parent: Directory) -> bytes:
        """The kernel knows the node."""
        if node is None:
            return messages.absent_reply(self._left_s(parent.listed_at))
        self._nodes.shown(node)
        return self._described(node, parent)

    def _described(self, node: Node, parent: Directory) -> bytes:
        valid_s = self._left_s(node.checked_at if isinstance(node, File) else parent.listed_at)
        return messages.entry_reply(node.attributes, self._owner, valid_s, valid_s if self._is_believed(node) else 0.0)

    def _attributes(self, node: Node) -> bytes | Coroutine[Any, Any, bytes]:
        if isinstance(node, Directory):
            return messages.attributes_reply(node.attributes, self._owner, self._believed_s)
        if self._holds(node.checked_at) and self._is_believed(node):
            return messages.attributes_reply(node.attributes, self._owner, self._left_s(node.checked_at))
        return self._checked(node)

    async def _checked(self, file: File) -> bytes:
        try:
            await self._settle(file)
        except OSError as error:
            # Keys that may list an object need not be allowed to read it.
            if error.errno != errno.EACCES or file.is_settled or not self._holds(file.checked_at):
                raise
            return messages.attributes_reply(file.attributes, self._owner, 0.0)
        return messages.attributes_reply(file.attributes, self._owner, self._left_s(file.checked_at))

    def _is_believed(self, node: Node) -> bool:
        """Whether its attributes may be shown to programs."""
        return isinstance(node, Directory) or node.is_settled or self._trust.believes(node.facts)

    async def _settle(self, file: File, *, is_read: bool = False) -> None:
        """Learn by a HEAD which version the object has. `is_read`: the kernel has a READ under way.

        Raises:
            OSError: ENOENT where there is no such object any more, ESTALE where the file was of another version.
        """
        facts = await self._bucket.head(file.key)
        if facts is None:
            self._put_in_place(file, None)
            raise OSError(errno.ENOENT, "it is gone")
        found = verdict(file.facts, facts, is_settled=file.is_settled)
        if found is SettleVerdict.MISSTATED:
            self._distrust_lists(file)
        elif found is SettleVerdict.SAME and not file.is_settled:
            self._trust.confirm(file.facts)
        # The kernel fills the room up to the end that it knows with zeros, and there is no safe moment to give it
        # another end while it reads: a file that is shorter than a LIST has shown becomes another file.
        is_other = found is SettleVerdict.MISSTATED and (not file.is_child or (is_read and facts.size < file.size))
        if found is SettleVerdict.CHANGED or is_other:
            self._put_in_place(file, facts)
            raise self._outdated(file)
        file.learn(facts, self._clock(), settled=True)

    def _put_in_place(self, file: File, facts: ObjectFacts | None) -> None:
        """`facts`: those of the version that took the place of `file`; None: there is none."""
        if file.is_child and facts is None:
            self._nodes.remove(file.parent, file.name)
        elif file.is_child and facts is not None:
            self._nodes.file(file.parent, file.name, facts, self._clock(), settled=True)

    def _outdated(self, file: File) -> OSError:
        """Another version took its place. A program that has the file open reads no byte of that."""
        file.checked_at = -inf
        return OSError(errno.ESTALE, "it was written anew")

    def _distrust_lists(self, file: File) -> None:
        """The LIST that showed `file` was wrong. The kernel may know others by a LIST that it believes."""
        self._reads.drop(file)
        if not self._trust.is_lost:
            self._trust.lose()
            log.warning("lists show wrong sizes or ETags", extra={"key": file.key})
            self._spawn(self._notify_of_all())

    async def _notify_of_all(self) -> None:
        for place, file in enumerate(self._nodes.shown_files(), 1):
            if not file.is_settled:
                self._write([messages.outdated_attributes(file.number)])
            if place % _NOTICES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _holds(self, checked_at: float | None) -> bool:
        return checked_at is not None and self._left_s(checked_at) > 0

    def _left_s(self, checked_at: float | None) -> float:
        """How long what was learnt at `checked_at` is still believed."""
        if checked_at is None:
            return 0.0
        return max(0.0, checked_at + self._believed_s - self._clock())

    # -- directories -------------------------------------------------------------------------------------------

    async def _open_directory(self, directory: Directory) -> bytes:
        if not self._holds(directory.listed_at):
            await self._listings.of(directory).end()
            await self._prove(directory)
        handle = next(self._handles)
        self._opened[handle] = self._nodes.opened(directory)
        return messages.opened_reply(handle)

    async def _prove(self, directory: Directory) -> None:
        """Ask at once about a few of its files, so that the kernel need not ask for the attributes of each."""
        numbers = self._nodes.children(directory)[: _LOOKED_AT if self._believed_s > 0 else 0]
        nodes = map(self._nodes.__getitem__, numbers)
        files = [node for node in nodes if isinstance(node, File) and not node.is_settled]
        unproved = [files[place] for place in self._trust.unproved(file.facts for file in files)]
        await asyncio.gather(*(self._settle(file) for file in unproved), return_exceptions=True)

    def _entries(self, number: int, handle: int, offset: int, size: int, *, plus: bool) -> bytes:
        numbers, parent, body = self._opened.get(handle, array("Q")), self._directory(number), bytearray()
        for place in range(offset, len(numbers) + 2):
            name = (".", "..")[place] if place < 2 else ""
            node = parent if name else self._nodes.member(parent, numbers[place - 2])
            if node is None:
                continue
            # Node 0: the kernel learns nothing of the two dots.
            entry = None if not plus else messages.absent_reply(0.0) if name else self._described(node, parent)
            packed = messages.directory_entry(packed_name(name or node.name), node.attributes, place + 1, entry)
            if len(body) + len(packed) > size:
                break
            body += packed
            if plus and not name:
                self._nodes.shown(node)
        return bytes(body)

    # -- bytes -------------------------------------------------------------------------------------------------

    async def _read(self, number: int, start: int, size: int) -> _Bytes:
        node = self._file(number)
        with contextlib.suppress(Stale):
            return await self._settling_read(node, start, size)
        try:
            await self._settle(node, is_read=True)
            return await self._settling_read(node, start, size)
        except (Stale, FileNotFoundError):
            raise self._outdated(node) from None
        finally:
            # Now, since before that the kernel might have asked for what was still wrong.
            self._write([messages.outdated_attributes(number)])

    async def _settling_read(self, file: File, start: int, size: int) -> _Bytes:
        """The bytes, of a version that is settled by them. Raises OSError, Stale."""
        data = await self._reads.read(file, start, size)
        if data and not file.is_settled:
            file.settle()
            self._trust.confirm(file.facts)
        return data

    # -- replies -----------------------------------------------------------------------------------------------

    def _later(self, unique: int, answer: Coroutine[Any, Any, _Bytes]) -> None:
        task = self._waiting[unique] = self._spawn(self._answered(unique, answer))
        task.add_done_callback(partial(self._ended, unique, answer))

    def _ended(self, unique: int, answer: Coroutine[Any, Any, object], task: asyncio.Task[None]) -> None:
        del self._waiting[unique]
        # Here, and not in the task: one that is cancelled before its first step does nothing.
        if task.cancelled():
            answer.close()
            self._reply(unique, error=errno.EINTR)

    async def _answered(self, unique: int, answer: Coroutine[Any, Any, _Bytes]) -> None:
        try:
            self._reply(unique, await answer)
        except Exception as error:  # noqa: BLE001 - the top of a request
            self._fail(unique, error)

    def _fail(self, unique: int, error: Exception) -> None:
        """Without an answer the caller would wait for ever, and could not be killed."""
        number = errno.ESTALE if isinstance(error, KeyError) else errno.EIO
        if isinstance(error, OSError):
            self._log(error)
            number = error.errno or errno.EIO
        elif not isinstance(error, KeyError):
            log.error("request of the kernel broke", exc_info=error)
        self._reply(unique, error=number)

    def _log(self, error: OSError) -> None:
        """A program that reads sees the number of the error alone."""
        is_warned = error.errno in (errno.EIO, errno.EACCES) and self._clock() >= self._log_after
        if is_warned:
            self._log_after = self._clock() + _LOG_PAUSE_S
        log.log(
            logging.WARNING if is_warned else logging.DEBUG, "a call of the mount failed",
            extra={"error": error.strerror, "errno": errno.errorcode.get(error.errno or 0)},
        )  # fmt: skip

    def _reply(self, unique: int, body: _Bytes = b"", error: int = 0) -> None:
        self._write([messages.reply_head(unique, len(body), error), body])

    def _write(self, parts: list[_Bytes]) -> None:
        try:
            os.writev(self._fd, parts)
        except OSError as error:
            # ENOENT: the reader was interrupted, and waits no more. ENODEV: it is unmounted.
            log.debug("reply not taken", extra={"error": str(error)})

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
