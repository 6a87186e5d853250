"""`outrider mount s3://BUCKET/PREFIX DIR [-- CMD]`: a bucket as files, for jobs that open paths.

1. `command` finds the running proxy (`running_proxy`), or starts one as `outrider run` does.
2. `fuse_clients` has the command line and environment of each FUSE client, tuned for a cache behind it: no second cache
   of its own, and attributes believed as long as the proxy's freshness. `outrider.mount` is our own client.
3. `missing` says which part of FUSE is missing on this machine, and what to do.
4. `mounting` starts the client, waits until the kernel has mounted, and unmounts at the end, also after a client that
   died.
5. With CMD, `run.child_process` runs it, and its exit status is ours. Without, the mount stays until SIGTERM or Ctrl-C.
"""

from outrider.cli.mount.command import mount

__all__ = ["mount"]
