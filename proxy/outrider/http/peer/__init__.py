"""The peer port: other members ask here for blocks and versions, and tell which names a write makes doubtful."""
