"""Simulates cache, readers and origin in virtual time, around the very planner and policies that the proxy runs.

1. `scenarios` describes the readers: jobs made up from a seed (`JobSpec`, `order_of`), or `logs` takes the requests of
   a real run from a proxy's own log (`requests_of`).
2. `world` has the parts of the machine: a `Timeline` of events in virtual time, a `SimStore` with a budget whose
   victims the policy chooses, and a `SimOrigin` behind a `Pipe` that serves the most urgent block first.
3. `run.SimProxy` connects them, and `run.Simulation` adds the jobs. For each shard that a reader opens the proxy
   notifies the planner, as the engine does, and asks it what to prefetch. The reader then waits for each of its blocks.
4. Each epoch of each job gives one `EpochResult`: hits, stalls, traffic, waste.
5. `cluster.ClusterSimulation` has many proxies in one virtual time, with links between them and one bucket.

`optimal` computes what Belady's choice would reach, as an upper bound of what eviction alone can do. Everything here is
pure: chance comes from a seed, so a run gives the same result each time.

The entry points are `run.Simulation`, `run.Machine` and `cluster.ClusterSimulation`; nothing is imported here, because
the command line imports this package at its start.
"""
