"""The origin: how a request reaches the S3 store behind the proxy.

1. `http_origin.HttpOrigin.ask` waits for one of a bounded number of connections. If none comes free in time, it raises
   `OriginBusy`.
2. It asks `credentials.AwsCredentials` for credentials, signs the request with SigV4, and sends it by `client.Client`.
   `connector` makes the connections, through the proxy that `forward_proxy` finds in the environment.
3. A refusal that is due to our side is repaired, and the request sent once more: another region of the bucket, a clock
   that is off, expired credentials. A request whose body was streamed is not repeated.
4. A `connection` of the event loop sends the request; `core/origin/reply_reader` reads the reply, and the body is
   streamed (`http_reply`). Each error becomes `OriginBroke`; nothing is retried here. Retries, resumed reads and hedged
   requests are the work of `engine/fill/origin_reader`.
5. A request whose body is large (`OriginRequest.bulk`) goes out over `bulk_client` instead, where a thread sends it on
   a `blocking_connection`, and receives the body (`bulk_reply`). Over https the connection is a line of one of the
   `receivers`, processes that run `receiver`: they speak TLS, and write into the block's file. A request for which no
   thread or receiver is free takes the other way. A large body of a request (`OriginRequest.body_in_thread`) is sent by
   `body_sender` over plain http, in a thread that takes it from the client's socket.

`traced_origin` wraps an origin with one OpenTelemetry span per attempt. It is imported only if traces are on.

The entry points are `http_origin.HttpOrigin` and `credentials.AwsCredentials`. They are not re-exported: importing them
loads aiohttp, for its resolver.
"""
