"""Decisions of `outrider operator`: where pods that read a dataset should run, and when they may start.

1. `wishes` reads the labels and annotations of a pod.
2. `placement` finds the zones where a pod can run, and matches labels.
3. `holdings` computes how much of its data each node and zone holds.
4. `affinity` prefers the nodes, and then the zones, that hold the data.
5. `pod_patch` writes it all as a JSON Patch of a pod that is being created.
6. `warm_gate` decides when a pod that waits for its data may be scheduled, and which zone warms it.
7. `certificates` decides when those of the webhook are made anew.
"""
