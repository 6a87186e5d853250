"""Compatibility tests: real clients get the same bytes directly from the bucket and through the proxy."""
