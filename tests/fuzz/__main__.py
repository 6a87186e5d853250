"""Runs the targets under atheris: `python -m tests.fuzz --seconds 60 --only form`.

The time is shared out among the targets. Inputs that reached new code are kept in the folder, and the next run goes on
from them. Each finding is printed as a literal, with the command that repeats it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import time
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass
from hashlib import sha1
from pathlib import Path

_FOLDER = Path(".fuzz")
_EXECUTIONS = re.compile(r"stat::number_of_executed_units: +(\d+)")
_COVERED = re.compile(r"cov: (\d+)")
# An input that hangs is ended after so long; one that is merely too slow fails its target.
_HANG_S = 20
_RSS_MB_MAX = 1024


@dataclass(frozen=True, slots=True)
class Result:
    """One target's run. `covered`: edges of the code that were reached. `findings`: files with inputs."""

    target: str
    executions: int
    seconds: float
    covered: int
    findings: tuple[str, ...]


def main() -> int:
    """0: nothing was found. 1: something was. 2: atheris is missing, or no target has such a name."""
    args = _arguments()
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: it has wheels for Linux on x86-64 alone", file=sys.stderr)
        return 2
    # The code under test is instrumented as it is imported, once: each target runs in a fork of this process.
    with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["outrider"], enable_loader_override=False):
        from tests.fuzz.catalogue import TARGETS
    if args.replay:
        TARGETS[args.only].run(args.replay.read_bytes())
        print("nothing found")
        return 0
    chosen = [name for name in TARGETS if args.only in name]
    if not chosen:
        print(f"no such target; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    share_s = max(1, round(args.seconds * args.jobs / len(chosen)))
    results: list[Result] = []
    under_way: dict[int, tuple[str, float]] = {}
    left = list(chosen)
    while left or under_way:
        while left and len(under_way) < args.jobs:
            name = left.pop(0)
            under_way[_begun(name, args.folder / name, share_s)] = name, time.monotonic()
        pid, status = os.wait()
        name, began = under_way.pop(pid)
        results.append(_result(name, args.folder / name, time.monotonic() - began, status))
        _report(results[-1])
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results]))
    return int(any(result.findings for result in results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all targets together (%(default)s)")
    parser.add_argument("--only", default="", metavar="NAME", help="the targets with NAME in theirs")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time (%(default)s)")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="for inputs, findings and logs (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the results")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="runs the target --only once, with this input")
    return parser.parse_args()


def _begun(name: str, folder: Path, seconds: int) -> int:
    """The process that fuzzes a target and then ends."""
    import atheris

    from tests.fuzz.target import TARGETS

    target = TARGETS[name]
    corpus, words = folder / "corpus", folder / "words"
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in target.seeds:
        (corpus / sha1(seed).hexdigest()).write_bytes(seed)
    words.write_text("".join(f'"{"".join(f"{chr(92)}x{byte:02x}" for byte in word)}"\n' for word in target.words))
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    log = os.open(_log(folder), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    flags = [
        f"-max_total_time={seconds}", f"-max_len={target.bytes_max}", f"-dict={words}", f"-timeout={_HANG_S}",
        f"-rss_limit_mb={_RSS_MB_MAX}", f"-artifact_prefix={folder}/", "-print_final_stats=1", "-use_value_profile=1",
    ]  # fmt: skip
    atheris.Setup([name, *flags, str(corpus)], target.run)
    atheris.Fuzz()
    os._exit(0)


def _log(folder: Path) -> Path:
    return folder / "log"


def _result(name: str, folder: Path, seconds: float, status: int) -> Result:
    log = _log(folder).read_text(errors="replace")
    executions, covered = _EXECUTIONS.search(log), _COVERED.findall(log)
    findings = [str(path) for kind in ("crash", "timeout", "oom") for path in sorted(folder.glob(f"{kind}-*"))]
    if status and not findings:
        findings = [str(_log(folder))]
    return Result(
        name, int(executions[1]) if executions else 0, round(seconds, 1), int(covered[-1]) if covered else 0,
        tuple(findings),
    )  # fmt: skip


def _report(result: Result) -> None:
    counts = f"{result.executions:12,} inputs {result.seconds:7.1f} s {result.covered:5} edges"
    print(f"{result.target:28} {counts}", flush=True)
    for path in result.findings:
        folder = Path(path).parent
        trace = _log(folder).read_text(errors="replace").partition("Uncaught Python exception")[2]
        print("\n".join(trace.splitlines()[2:40]).partition("==")[0].rstrip())
        if not path.endswith("/log"):
            print(f"found by {result.target}: {Path(path).read_bytes()!r}")
            print(f"again: {sys.executable} -m tests.fuzz --only {result.target} --replay {path}")


if __name__ == "__main__":
    raise SystemExit(main())
