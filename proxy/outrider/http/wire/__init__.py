"""The HTTP on the wire: what is read from a socket beside aiohttp's parser, and all that is written to it.

Connections: `acceptor` bounds those that have not shown who they are; `bounded_head` bounds the wait for a request.

Reading: `request_guards` turns any exception of aiohttp's parser into a refusal, refuses requests that HTTP stacks read
in different ways, and drops the headers that are for one connection only. `request_body` yields the
body of a request, with a time limit and a least rate. `body_socket` gives a large body to a thread instead.

Writing: `reply.WireReply` sends a head of the proxy's own and then the pieces of a body. Bytes are sent as they are; a
piece of a block file is copied to the socket by the kernel (`sendfile`). `sender` does the sending: `SocketSender` for
plain TCP, past asyncio's transport, and `TlsSender` for TLS, where the file's bytes have to be read. Both apply
back-pressure: `send` waits while the client takes nothing. A body that fails halfway cuts the connection, so that it
never looks whole.

Entry points: `sender.wire_of`, `reply.WireReply`, `request_body.client_body`. Nothing is re-exported here.
"""
