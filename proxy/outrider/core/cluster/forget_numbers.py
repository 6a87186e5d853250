"""The numbers of forgets, by which a member notices that it missed one."""

from __future__ import annotations

from dataclasses import dataclass, field

REORDER_S = 0.5
"""Forgets that are sent at once may overtake each other, and a hello may overtake them. A sender waits for an answer
for 0.25 s; a number that is missing for longer than twice that was lost."""
# More are not waited for: their numbers would be remembered.
_MISSING_MAX = 4096
_SENDERS_MAX = 1024


@dataclass(slots=True)
class _Process:
    # All numbers up to `done` came; of those up to `highest`, the `ahead` came.
    done: int = 0
    highest: int = 0
    ahead: set[int] = field(default_factory=set)
    # When the first missing number counts as lost.
    lost_at: float | None = None


class ReceivedForgets:
    """The receiver's side. A gap means that a forget was missed: everything that is believed by then is doubtful, and
    has to be forgotten. That costs questions to the bucket, and no bytes.

    A member whose process is not known had sent nothing when it began. So its first number is a gap unless it is 1, and
    so is its first hello unless that states 0: a forget may have been sent before this node began, or while it could
    not be reached. A new process of a known member is always a gap: the last forgets of the one before may have been
    missed. Each process is counted by itself, so that two of one name do not look like one that begins again and again.
    """

    def __init__(self, senders_max: int = _SENDERS_MAX) -> None:
        self._senders_max = senders_max
        # The process that was active last is the last one.
        self._senders: dict[tuple[str, int], _Process] = {}

    @property
    def due_at(self) -> float | None:
        """When `passed` is to be called; None: no number is missing."""
        return min((each.lost_at for each in self._senders.values() if each.lost_at is not None), default=None)

    def received(self, sender: str, boot: int, numbers: range, now: float) -> bool:
        """Forgets came in one message, for the first time or again; all before them were sent. Returns whether there is
        a gap."""
        known, is_gap = self._process(sender, boot)
        before, last = known.done, numbers.stop - 1
        known.highest = max(known.highest, last)
        if numbers.start <= before + 1:
            known.done = max(before, last)
            known.ahead = {number for number in known.ahead if number > known.done}
        elif known.highest - before <= _MISSING_MAX:
            known.ahead.update(numbers)
        while known.done + 1 in known.ahead:
            known.done += 1
            known.ahead.remove(known.done)
        if known.done == known.highest:
            known.lost_at = None
        elif known.highest - known.done > _MISSING_MAX:
            _give_up(known)
            return True
        elif known.lost_at is None or known.done != before:
            known.lost_at = now + REORDER_S
        return is_gap

    def reported(self, sender: str, boot: int, last: int, now: float) -> bool:
        """A hello reports the number of the last forget. Returns whether there is a gap."""
        return self.received(sender, boot, range(last + 1, last + 1), now)

    def passed(self, now: float) -> bool:
        """Returns whether a number that was missing counts as lost now."""
        lost = [each for each in self._senders.values() if each.lost_at is not None and now >= each.lost_at]
        for each in lost:
            _give_up(each)
        return bool(lost)

    def _process(self, sender: str, boot: int) -> tuple[_Process, bool]:
        """The record of a process, and whether it is new while another one of its name is known."""
        known = self._senders.pop((sender, boot), None)
        is_other = known is None and any(name == sender for name, _ in self._senders)
        if known is None:
            known = _Process()
            if len(self._senders) >= self._senders_max:
                # It counts as unknown when it returns: a gap, unless it has sent nothing.
                del self._senders[next(iter(self._senders))]
        self._senders[sender, boot] = known
        return known, is_other


def _give_up(known: _Process) -> None:
    """Everything is forgotten now, and so are the names of the numbers that are missing."""
    known.done, known.lost_at = known.highest, None
    known.ahead.clear()
