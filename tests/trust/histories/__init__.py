"""Histories: members of a cluster as real processes, under writes, reads and faults, and a judge of what clients saw.

`tests/trust/test_histories.py` plays its rounds. Each round has members of its own, on hosts
of their own behind one switch (network namespaces; without root on loopback, and without faults of the network), and a
bucket in this process, which knows the order of all versions.

- `record`: the record of a round. Each 16 bytes of a body name their write and their place.
- `checks`: the pure judge of a record.
- `bucket`: the bucket, with three forms of ETags, and conditions.
- `clients`: writers by all forms of writes, past the members too, and readers at all members.
- `faults`: the schedule of faults, drawn from the seed, and how they are carried out.
- `rounds`: one round and their sum, and its table.
"""
