"""The peer port: other members of the cluster ask here for blocks and versions, and tell which names a write changed."""
