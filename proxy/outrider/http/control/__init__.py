"""The control bucket `_outrider`: clients talk to the proxy itself by plain S3 calls, with the keys that they have.

No S3 store allows this bucket name, so a request to it can only be meant for the proxy, and never goes to the origin.
`control_bucket.ControlBucket` answers by folder:

    status.json                   the status document, cut down to what a client may see
    plan/<name>                   access hints: the reads that one worker of a job will do next, for the planner
    stall/<name>                  how long a training loop waited for data, summed up
    warm/, pin/, evict/, verify/  maintenance commands over a list of names (`maintenance.MaintenanceCommands`)
    batch                         POST: a list of objects, answered by one tar of them (`batch_body`)

`objects` has the request, the answer, and the bounded table of the objects that clients put. In sigv4 mode each client
key sees its own objects alone, and may name only objects that a grant lets it read.
"""
