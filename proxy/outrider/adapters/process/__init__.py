"""The process and its machine.

`system` sets up logs, the limit on open files, the heap, the garbage collector and the event loop. `recent_errors`
keeps recent warnings and errors of the log for the status page. Both are imported directly: `system` loads uvloop.
"""
