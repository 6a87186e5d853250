"""Cache, readers and origin in virtual time, around the very planner and policies that the proxy runs. Pure, apart from
the chance in the made-up worlds, which a seed makes the same each time."""
