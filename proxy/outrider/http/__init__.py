"""The HTTP ports: the S3 port for clients, the admin port, the port for the other members of a cluster (`peer`), and
those of `outrider operator` (`operator`).

A request to the S3 port goes this way:

    s3/connection     receives bytes, and offers them to the fast path first
    s3/fast_path      answers a plain read of a cached object at once, without the HTTP parser
    s3/handler        the slow path: all other requests, after aiohttp has parsed them
    access            finds out who sent the request, and whether a grant covers it
    control/          answers requests to the control bucket `_outrider`
    wire/             guards the parser, reads bodies, and sends replies
    record/           counts the request, logs its line, and ends its span

`admin/` is the admin port: probes, metrics, status and the dashboard. It and `peer/` share `wire/` with the S3 port.

Errors of S3 become XML here and nowhere else. Nothing here knows the adapters; the engine is called for every read,
write and list. Floors, from below: record, wire, access, then control and admin, then s3, then peer and operator.

Entry points: `s3.server.S3Server` and `admin.server.AdminServer`, both made by `composition` and `app`.
"""
