"""The process and its machine.

`system` sets up logs, the limit on open files, the heap, the garbage collector and the event loop. `recent_errors`
keeps recent warnings and errors of the log for the status page. `cpu_clock` reads the CPU time of the event loop, the
process and the receivers. All are imported directly: `system` loads uvloop.
"""
