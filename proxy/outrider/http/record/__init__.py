"""The record of each request: its line in the access log, its counts in the metrics, and its span.

When a request ends, the port makes one `record.Ended` of it: who sent it, what it requested, the status, the bytes sent
by source, and how long each part took. `request_end.RequestRecorder` takes the record. It counts the request and its
bytes, adds a read to the usage of its dataset and reader, keeps a server error among the recent errors, hands the line
to `access_log.AccessLog`, and ends the span (`server_spans`, only while traces are on). It also knows how many requests
are under way, which a stop waits for.

A hit of the fast path takes a shorter way: `hit_counts.HitCounts` counts it in plain numbers, which are added to the
metrics when somebody reads them, and its line is written by `AccessLog.hit`.

Nothing is re-exported here: `server_spans` needs the extra `tracing`, and is imported only while traces are on.
"""
