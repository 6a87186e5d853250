"""Benchmarks and the demo, each run as a module: `python -m tests.bench.<name>`."""
