"""The S3 port, from a client's connection to the reply.

`server.S3Server` accepts connections on the engine's loop and makes a `connection.Connection` of each. When bytes
arrive on an idle connection:

1. `fast_path.FastPath.answer` looks at them. It recognises the plain GET or HEAD that training jobs send by the
   million, verifies its signature and its grant (`hit_admission`), and looks for the object in the cache.
2. If all blocks are here and in memory, the reply is sent in the same call (`hit_reply`): no parser, no task, no wait.
3. If the pages have to be read from disk, or the block has to be verified first, a thread does that, and the fast path
   is asked again. A small block in memory is verified at once.
4. In all other cases the bytes go to aiohttp's parser, and `handler.S3Handler` answers the request in a task: this is
   the slow path. It gives the same reply to any request that the fast path could have answered.

`exchange` has the results that the fast path leaves to the slow path: a reply that the socket did not take at
once (`Begun`), a hit that waits for the disk (`ColdHit`), and the verified sender and the operation of a request that
it could not answer (`Recognised`). The last one is bound to the exact bytes of the request, so nothing that was found
out about one request can be used for another on the same connection.

`exchange.Exchange` is a request on the slow path with the facts for its log line.

Entry point: `server.S3Server`. Nothing is re-exported here, so that importing one module does not load the others.
"""
