"""The name of one epoch of a job, for those that refer to it later."""

from __future__ import annotations


class EpochHandle:
    """A hint holds this instead of the `JobEpoch`, which goes on to the job's next epoch by itself.

    `number` counts the epochs of one `JobEpoch`. `ended` is True once all objects that it was expected to read were
    read.
    """

    __slots__ = ("ended", "number")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.ended = False
