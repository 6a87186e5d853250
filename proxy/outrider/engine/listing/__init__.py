"""LISTs: those of clients, and those that the proxy sends itself.

A client's LIST goes to `lists.Lists`. If a rule of the settings names the prefix, `list_cache.ListCache` may have the
page; otherwise the passthrough sends the request, and the page is cached on its way to the client. A page is served
until its time is up; after a write through this proxy of an object that it may show, it is amended first. A page is not
cached if such a write came while it was under way. `kept_pages.KeptPages` holds the pages, by the memory that they
take. All other LISTs are forwarded.

`enumerate.Enumerator` finds out for prefetch and warm-ups which objects exist: page by page with a LIST of a prefix, or
by a few HEADs where the names are numbered. Each page also confirms versions that the version cache knows, or casts
doubt on them. A LIST that ends without an error was whole: a truncated page without a token is gone on from by its last
key, and pages that repeat or hide keys are an error. Stores that refuse version 2 or `encoding-type` are asked without.

Entry points: `lists.Lists`, `list_cache.ListCache`, `enumerate.Enumerator`.
"""
