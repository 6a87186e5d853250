"""`outrider demo`: an emulated training job reads a bucket directly, and through a proxy, cold and warm.

1. `bucket` starts SeaweedFS, a real S3 server (extra `outrider[demo]`), on loopback ports, and fills it.
2. `slow_line` is the network in between: it delays replies, limits the bandwidth of a connection, and counts bytes.
3. `job` is a process of its own, as a training job is: it finds S3 by AWS_ENDPOINT_URL, and reports how long its loop
   waited for data. A sleep for each batch is the accelerator.
4. `command` runs the job at the slow line, and at a proxy behind which the slow line is, and prints a table.
"""

from outrider.cli.demo.command import demo

__all__ = ["demo"]
