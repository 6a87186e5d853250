"""Coverage-guided fuzzing of everything that reads bytes of strangers.

A target (`target.py`) is a function that takes any bytes and asserts what must hold for them: no error but the
documented one, the same meaning as in another parser, the same result in any pieces, a message that is the same when it
is written anew, and half a second of CPU time at most. `request_bytes`, `body_bytes`, `origin_bytes`, `member_bytes`
and `disk_bytes` have the targets.

`python -m tests.fuzz` (`__main__.py`) runs them under atheris, which is libFuzzer for Python: it changes the seeds of a
target, keeps each input that reaches code that none before it reached, and changes these.
tests/trust/test_fuzz_targets.py runs the seeds and changes of them in `make test`, without atheris, and a minute under
atheris in `make soak`.

To add a target: a function with a docstring that says what holds, under `@target(seed, ...)`. A finding becomes a test
where the code under test has its tests, and a seed.
"""
