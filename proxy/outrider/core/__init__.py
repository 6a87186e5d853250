"""Decisions without IO: facts go in, decisions come out.

Core is pure. It has no event loop, no clock, no files, no sockets, no threads, no logging and no chance of its own: the
time and a random number are arguments, and the caller does what was decided. A test therefore needs numbers, and no
patch. import-linter holds the rule, and these floors, each of which imports only from those below it:

    insight, operator           figures for people: usage, miss-ratio curve, bottleneck; where a pod should run
    ahead                       which reads come next, and what to prefetch: datasets, orders, candidates
    auth, cache, maintenance    who may do what; how blocks are kept; what the maintenance commands know
    s3, origin, cluster         the S3 protocol; the pace and the errors of requests to the origin; members
    packed_version              a version as bytes
    model, block_layout, errors, text
                                objects, versions, extents and blocks; S3 errors; sizes in words
    memo, rendezvous, rows      a bounded memo; which candidate gets a block; tables in columns
"""
