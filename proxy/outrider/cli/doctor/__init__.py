"""`outrider doctor`: checks what would keep a proxy with these settings from serving a job well.

Each check yields a `finding.Diagnosis`: its name, a level (ok, warn, fail), a text, and what to do. `command` runs the
checks in this order and prints each finding:

1. the settings themselves
2. `origin_checks`: credentials, network, signature and clock, by a ListBuckets at the origin; with a bucket
   `bucket_checks` and `line_checks`
3. `machine_checks`: cache directory, room and speed of its disk, ports, limit on open files
4. `peer_checks`, with `--peers`: key, list of members, and a signed hello to each
5. `job_checks`: whether a job with this environment would use the proxy

With --health or --probe it only asks an admin port whether the proxy is ready. With --endpoint it only asks the S3 port
of a proxy elsewhere, as a job would.
"""

from outrider.cli.doctor.command import doctor

__all__ = ["doctor"]
