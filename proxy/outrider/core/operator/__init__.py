"""Decisions of `outrider operator`: where pods that read a dataset should run, and when they may start.

1. `wishes` reads the labels and annotations of a pod.
2. `affinity` prefers the nodes, and then the zones, that hold the data.
3. `pod_patch` writes it all as a JSON Patch of a pod that is being created.
4. `warm_gate` decides when a pod that waits for its data may be scheduled.
5. `leadership` decides which of several operators acts.
6. `certificates` decides when those of the webhook are made anew.
"""
