"""Real clients, each against the bucket and through the proxy: the same bytes both ways."""
