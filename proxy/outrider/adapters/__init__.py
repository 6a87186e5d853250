"""The outside world behind the ports: the origin, the disk, the system's clock."""
