"""The status of the running proxy, for people and for clients.

`document.StatusDocument` makes the one status document. The admin port shows the whole of it at /status; a client gets
the part that it may see as status.json of the control bucket. It is put together from four parts: the state of the
service (cache, requests, counters, prefetch), the warm-ups and pins, the overview, and the cluster.

`overview.Overview` is the part for operators: datasets and readers, the rates of the last minutes, the savings and the
recent errors. It records the rates about once a second, and adds its gauges to each scrape of the metrics.

`verdicts.Verdicts` says why readers wait, and the next step. It looks at the parts of the proxy once a second.

`held_datasets` is for `outrider operator`: what this node has of each dataset.

`cluster_part.ClusterPart` is the part for the members of the cluster. `block_owners` finds which of them
own the blocks of an object, and `cluster_map.ClusterMap` which of them hold which share of each dataset. Without
`--peers`, none of these is there.
"""
