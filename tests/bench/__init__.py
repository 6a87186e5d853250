"""Measurements and the demo: run as modules, `python -m tests.bench.<name>`."""
