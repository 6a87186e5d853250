"""The peer port: other members ask here for blocks and versions, and report which names a write makes doubtful.

1. `server.PeerServer` makes a `PeerConnection` of each connection that `wire.acceptor` admits. aiohttp
   parses the requests, and replies are sent as at the S3 port, with `sendfile`.
2. `handler.Gatekeeper` lets a request pass that a member signed with the key of the cluster, a moment ago and for
   the first time, and for this member. Clients of the S3 port have no key for this port.
3. `handler.PeerHandler` reads the question (`core/cluster/peer_wire`), asks the `PeerEngine`, and sends the answer. It
   counts each refusal, and answers no request that a member has passed on. Each answer has a proof of the key.
"""
