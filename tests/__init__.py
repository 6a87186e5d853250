"""Tests, and what they run against: importable as `tests.support...` from the top of the repository."""
