"""The process and its machine: logs, and the limit on open files."""

from __future__ import annotations

import json
import logging
import resource
import sys
import time
from typing import Literal

_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, event, then the facts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """For a terminal: the same facts, shorter."""

    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{name}={_printable(value)}" for name, value in _fields(record).items())
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {record.getMessage()} {facts}".rstrip()
        if record.levelno >= logging.WARNING:
            line = f"{record.levelname}: {line}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _printable(value: object) -> str:
    """A key may hold line breaks and terminal escapes, which must not act as such."""
    text = str(value)
    return text if text.isprintable() else repr(text)


def set_up_logs(level: str, form: Literal["json", "text"] | None) -> None:
    """Logs of this process go to stderr. `form` None: text on a terminal, else JSON."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = form == "text" or (form is None and sys.stderr.isatty())
    handler.setFormatter(TextLines() if as_text else JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Libraries' own chatter, which may hold URLs with signatures in them, is not ours to repeat.
    for name in ("aiohttp", "aiobotocore", "botocore", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)


def raise_open_files_limit() -> None:
    """As many open files as the system allows: a connection takes two, an open block one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 65536
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, 65536), hard))
