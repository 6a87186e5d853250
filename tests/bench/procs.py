"""CPU time and memory of a server's processes, from /proc. A server is a session, as `Child` starts it."""

from __future__ import annotations

import os
import re
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def session_pids(session: int) -> list[int]:
    """All processes of a session: the server and all that it started."""
    numbers = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in numbers if _stat(pid)[3:4] == [str(session)]]


def cpu_s(session: int) -> float:
    """User and system time that the session has taken, ended and awaited children included, to 10 ms."""
    return sum(int(field) for pid in session_pids(session) for field in _stat(pid)[11:15]) / _TICKS_PER_S


def machine_cpu_s() -> float:
    """CPU time of all processes and the kernel since the machine's start, to 10 ms."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = _machine()
    return (user + nice + system + irq + softirq) / _TICKS_PER_S


def stolen_s() -> float:
    """Core-seconds since the machine's start in which a virtual machine's host ran others although something was to run
    (proc_stat(5), steal), to 10 ms."""
    return _machine()[7] / _TICKS_PER_S


def _machine() -> list[int]:
    """The fields of the machine's line in /proc/stat, in ticks."""
    return [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]


def rss_bytes(session: int) -> int:
    """Resident memory; pages that several of its processes share count once for each."""
    return sum(_status_bytes(pid, "VmRSS") for pid in session_pids(session))


def peak_rss_bytes(session: int) -> int:
    """The maximum of resident memory, summed over the processes that live."""
    return sum(_status_bytes(pid, "VmHWM") for pid in session_pids(session))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, the state first; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _status_bytes(pid: int, field: str) -> int:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * 1024 if found else 0
