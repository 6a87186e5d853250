"""The admin port: `/healthz`, `/readyz`, `/metrics`, `/status` and the dashboard.

`server.AdminServer` is a port of its own, so that operators and probes get an answer while the S3 port has no
connection to spare. It is bound to loopback, where a guard refuses web pages of other origins; on any other address it
needs a bearer token. Each connection serves one request within a time limit (`connection`). `/status` sends the
document that `engine.status.document` makes. `dashboard` has the files of the page, which asks `/status` for all that
it shows.
"""
