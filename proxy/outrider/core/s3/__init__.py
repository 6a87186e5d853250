"""The S3 protocol as the proxy needs it: reading requests, and writing what S3 prescribes. Nothing here knows the
cache.

A request comes in one of two ways. `plain_request` recognises the lone GET or HEAD of an object that training jobs send
by the million, from the bytes of its head; a request that it does not recognise goes to the HTTP parser. Either way
`operation.classify` names the bucket and key, and decides who answers:

    GET, HEAD    the cache, where all stores would read the request alike
    CONTROL      the proxy itself: the control bucket `_outrider`
    FORWARD      the origin: all else, also calls that are not known here

and which names a forwarded request may change, for the version cache to forget. `reach` finds how far a request goes
beyond the names in its path: grants, and what is forgotten, depend on it. `conditions` and `ranges` read the
conditional headers and the Range of a read that the cache answers.

A body that goes to the origin is checked on its way. `body_integrity` reads what its headers state of it (the form of
the payload, its length, its checksums), `aws_chunked` decodes and encodes signed and unsigned chunks with trailers, and
`form_fields` takes apart a browser's upload. `headers` decides which headers pass in each direction. `encoding` is the
canonical form of paths, queries and header values that signatures cover; `list_page` and `xml` parse LIST pages and
DeleteObjects bodies, and `xml` writes error documents. `checksums` reads what a reply proves of the content of an
object.

Entry points: `operation.classify`, `plain_request.recognise`, `body_integrity.payload_rule`.
"""
