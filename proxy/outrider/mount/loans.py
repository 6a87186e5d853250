"""Descriptors of block files that the proxy on this machine lends: their bytes are read here, and cross no socket.

A loan is looked for before each GET. Where there is none (the proxy is on another machine, older, or asks for
signatures; the block is missing, or the origin has to be asked), the GET is sent, and fails as it would without loans.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from outrider.core.cache import loan_messages
from outrider.core.cache.loan_messages import BadMessage, Loan, LoanRead
from outrider.core.errors import OriginBroke
from outrider.mount.lender_socket import ANSWER_S, LenderConnection, close_all, connected_to, offered, received
from outrider.mount.listed import FileVersion, ObjectFacts
from outrider.mount.messages import READ_BYTES_MAX
from outrider.mount.nodes import File
from outrider.pagecache import fd_stays_in_memory, read_in_memory
from outrider.ports import Clock, Origin

log = logging.getLogger(__name__)

LOANS_MAX = 16384
# The proxy waits as long for its disk, and then lets the bucket serve.
_PATIENCE_S = 10.0
_START_S = 0.5
_READERS = 8
# The planner of the proxy learns of reads this much later at most.
_REPORT_S = 0.02
_PAUSE_S, _PAUSE_S_MAX = 0.5, 15.0


class _HeldLoan:
    """A loan with its descriptor, which is closed with the last use of this object: threads read by it, too."""

    __slots__ = ("fd", "loan", "stays", "until")

    def __init__(self, loan: Loan, fd: int, until: float) -> None:
        self.loan = loan
        self.fd = fd
        self.until = until
        self.stays = fd_stays_in_memory(fd)

    def __del__(self) -> None:
        os.close(self.fd)

    def is_of(self, file: File) -> bool:
        """Another size or ETag of the file may have been learnt since."""
        return self.loan.size == file.size and self.loan.etag == file.etag

    def read(self, start: int, stop: int) -> bytes | None:
        """None: the file has less, as the proxy has dropped the block, or the disk fails."""
        try:
            data = os.pread(self.fd, stop - start, self.loan.offset + start - self.loan.start)
        except OSError:
            return None
        return data if len(data) == stop - start else None


class _LoanQuestion:
    """For a loan of a block of `version`, asked at this time: that of the loan runs from then at the earliest."""

    __slots__ = ("key", "number", "requested_at", "timer", "version", "waiters")

    def __init__(self, number: int, key: tuple[int, int], version: FileVersion, requested_at: float) -> None:
        self.number = number
        self.key = key
        self.version = version
        self.requested_at = requested_at
        self.timer: asyncio.TimerHandle | None = None
        self.waiters: list[asyncio.Future[None]] = []

    def is_answered_by(self, held: _HeldLoan) -> bool:
        loan = held.loan
        return self.version.may_be(ObjectFacts(loan.size, loan.etag, loan.seconds))


class Loans:
    """Owned by one file system, from `start` to `stop`. On the running loop."""

    def __init__(
        self, proxy: Origin, bucket: str, *, held_max: int, clock: Clock = time.monotonic,
        patience_s: float = _PATIENCE_S,
    ) -> None:  # fmt: skip
        """`held_max`: so many loans at once. `patience_s`: how long a disk may take."""
        self._held_max = held_max
        self._patience_s = patience_s
        self._proxy = proxy
        self._bucket = bucket
        self._clock = clock
        self._line: LenderConnection | None = None
        self._is_lost = asyncio.Event()
        self._block_bytes = 1
        # By the file's number and the block's, the one that was read last at the end.
        self._held: OrderedDict[tuple[int, int], _HeldLoan] = OrderedDict()
        self._numbers = count(1)
        # The same questions by their numbers, and by file and block.
        self._questions: dict[int, _LoanQuestion] = {}
        self._open_questions: dict[tuple[int, int], _LoanQuestion] = {}
        self._reports: list[LoanRead] = []
        self._timer: asyncio.TimerHandle | None = None
        self._read_at = time.perf_counter()
        self._buffer = memoryview(bytearray(READ_BYTES_MAX))
        self._threads = ThreadPoolExecutor(_READERS, "loans")
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it is connected, or that takes too long for the first reads to wait for."""
        first = asyncio.create_task(self.connect(), name="loans")
        self._task = asyncio.create_task(self._stay_connected(first), name="loans")
        await asyncio.wait([first], timeout=_START_S)

    async def stop(self) -> None:
        self.report()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._lose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- reads -------------------------------------------------------------------------------------------------

    def at_once(self, file: File, start: int, stop: int) -> memoryview | None:
        """The bytes, for as long as nothing else is read. None: they are not lent, or not in memory."""
        began = time.perf_counter()
        held = self._known(file, start)
        if held is None or (data := self._in_memory(held, start, stop)) is None:
            return None
        self._note(file, start, stop, began)
        return data

    async def read(self, file: File, start: int, stop: int) -> bytes | memoryview | None:
        """The bytes of the version that `file` has, as `at_once` gives them. None: a GET has to bring them."""
        began = time.perf_counter()
        pieces: list[bytes] = []
        at, disk_s = start, 0.0
        while at < stop:
            held = self._known(file, at) or await self._ask(file, at)
            if held is None:
                return None
            if (data := self._in_memory(held, start, stop)) is not None:
                self._note(file, start, stop, began)
                return data
            end, requested_at = min(stop, held.loan.stop), time.perf_counter()
            piece = await self._from_disk(held, at, end)
            disk_s += time.perf_counter() - requested_at
            if piece is None:
                self._held.pop((file.number, at // self._block_bytes), None)
                return None
            pieces.append(piece)
            at = end
        self._note(file, start, stop, began, disk_s)
        return b"".join(pieces)

    async def _from_disk(self, held: _HeldLoan, start: int, stop: int) -> bytes | None:
        """None: see `_HeldLoan.read`; or the disk hangs."""
        reading = asyncio.get_running_loop().run_in_executor(self._threads, held.read, start, stop)
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.shield(reading)
        except TimeoutError:
            log.warning("the disk of the cache hangs: reads go through the proxy")
            self._lose()
            return None

    def _in_memory(self, held: _HeldLoan, start: int, stop: int) -> memoryview | None:
        """None: not all of it is in memory, and in this block."""
        loan = held.loan
        if stop > loan.stop or start < loan.start or stop - start > READ_BYTES_MAX:
            return None
        into = self._buffer[: stop - start]
        try:
            is_whole = read_in_memory(held.fd, loan.offset + start - loan.start, into, stays=held.stays)
        except OSError:
            return None
        return into if is_whole else None

    def _known(self, file: File, start: int) -> _HeldLoan | None:
        key = (file.number, start // self._block_bytes)
        held = self._held.get(key)
        if held is None or self._line is None:
            return None
        if held.loan.changes == self._line.changes[0] and self._clock() < held.until and held.is_of(file):
            self._held.move_to_end(key)
            return held
        del self._held[key]
        return None

    # -- questions ---------------------------------------------------------------------------------------------

    async def _ask(self, file: File, start: int) -> _HeldLoan | None:
        """The kernel asks for several parts of a block at once, and the proxy is asked for it once."""
        key = (file.number, start // self._block_bytes)
        question = self._open_questions.get(key)
        if question is None:
            if self._line is None or len(self._open_questions) >= self._line.terms.questions_max:
                return None
            number = next(self._numbers)
            question = _LoanQuestion(number, key, file.version, self._clock())
            self._open_questions[key] = self._questions[number] = question
            question.timer = asyncio.get_running_loop().call_later(ANSWER_S, self._end, question, None)
            self.report(LoanRead(number, file.key, start, start + 1))
        if key in self._open_questions:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            question.waiters.append(waiter)
            await waiter
        # Even if it is over by now, it was not when the kernel asked.
        held = self._held.get(key)
        return held if held is not None and held.is_of(file) else None

    def _end(self, question: _LoanQuestion, held: _HeldLoan | None) -> None:
        """The question is answered; None: there is no loan, or no answer came."""
        del self._open_questions[question.key], self._questions[question.number]
        if question.timer is not None:
            question.timer.cancel()
        if held is not None and question.is_answered_by(held):
            self._held[question.key] = held
            if len(self._held) > self._held_max:
                self._held.popitem(last=False)
        for waiter in question.waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _note(self, file: File, start: int, stop: int, began: float, disk_s: float = 0.0) -> None:
        """A read by a loan, which `began` then."""
        file.reads_at = stop
        now = time.perf_counter()
        wait_s, away_s = now - began, max(0.0, began - self._read_at)
        self._read_at = now
        if self._reports:
            last = self._reports[-1]
            if last.key == file.key and last.stop == start:
                times = (last.wait_s + wait_s, last.away_s + away_s, last.disk_s + disk_s)
                self._reports[-1] = LoanRead(0, file.key, last.start, stop, *times)
                return
        self._reports.append(LoanRead(0, file.key, start, stop, wait_s, away_s, disk_s))
        if len(self._reports) >= loan_messages.READS_MAX:
            self.report()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_REPORT_S, self.report)

    def report(self, question: LoanRead | None = None) -> None:
        """Report the reads so far to the proxy, and then ask: its planner goes by their order."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reads, self._reports = self._reports, []
        if question is not None:
            reads.append(question)
        if self._line is None or not reads:
            return
        try:
            self._line.socket.send(loan_messages.pack_reads(reads))
        except OSError:
            self._lose()  # it is gone, or stopped

    # -- the connection ----------------------------------------------------------------------------------------

    async def _stay_connected(self, connecting: asyncio.Task[bool]) -> None:
        pause_s = _PAUSE_S
        while True:
            with contextlib.suppress(OriginBroke, TimeoutError):  # the proxy is started anew
                if not await connecting:
                    return
                pause_s = _PAUSE_S
                await self._is_lost.wait()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)
            connecting = asyncio.create_task(self.connect(), name="loans")

    async def connect(self) -> bool:
        """False: this proxy lends nothing to this machine. Raises OriginBroke, TimeoutError: it does not answer."""
        offer = await offered(self._proxy)
        if offer is None:
            return False
        loop = asyncio.get_running_loop()
        try:
            line = await loop.run_in_executor(self._threads, connected_to, offer, self._bucket)
        except TimeoutError:
            raise
        except (OSError, ValueError, BadMessage) as error:
            # The proxy is on another machine, or sees another directory there.
            log.debug("no descriptors", extra={"error": str(error)})
            return False
        self._line, self._block_bytes = line, line.terms.block_bytes
        self._is_lost.clear()
        loop.add_reader(line.socket.fileno(), self._readable, line)
        return True

    def _readable(self, line: LenderConnection) -> None:
        try:
            packet, fds = received(line.socket)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        if not packet:
            self._lose()
            return
        try:
            number, loan = loan_messages.parse_answer(packet)
        except BadMessage:
            close_all(fds)
            self._lose()
            return
        question = self._questions.get(number)
        if question is None or loan is None or not fds:
            close_all(fds)
        if question is not None:
            held = None if loan is None or not fds else _HeldLoan(loan, fds[0], question.requested_at + loan.fresh_s)
            self._end(question, held)

    def _lose(self) -> None:
        """Nobody counts changes any more: all loans are over."""
        line, self._line = self._line, None
        self._held.clear()
        self._reports.clear()
        for question in list(self._questions.values()):
            self._end(question, None)
        if line is not None:
            asyncio.get_running_loop().remove_reader(line.socket.fileno())
            line.socket.close()
            self._is_lost.set()
