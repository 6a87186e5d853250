"""Tasks that end with their owner.

Every task of the engine has an owner. A task that belongs to one piece of work runs in a `TaskGroup` and ends with the
block that opened the group. A task that belongs to no request is spawned by `Background`, which logs its failure and
cancels it at the stop of the proxy. A part of the engine gets the means to start tasks, to read the clock and to wait
as one `Runtime`, which tests replace.
"""

from outrider.engine.tasks.background import Background, background
from outrider.engine.tasks.runtime import Runtime, Spawn
from outrider.engine.tasks.task_group import TaskGroup

__all__ = ["Background", "Runtime", "Spawn", "TaskGroup", "background"]
