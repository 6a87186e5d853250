"""Compatibility tests: real clients, each against the bucket and through the proxy, must get the same bytes both
ways."""
