"""The work: reads, fills and writes, carried out through the ports."""
