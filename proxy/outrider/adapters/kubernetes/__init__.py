"""The calls of `outrider operator` to the API server of Kubernetes, and to the cache. Imported by that command only.

The client library is lightkube, as for the peers (`adapters/cluster/kubernetes_source`). kopf would bring handlers, a
queue for each object and its own annotations on users' pods, for a loop that lists pending pods and patches some;
kubernetes-asyncio takes 40 MB for the models of the whole API. The calls are those that `tests/support/api_calls.py`
lists, and no others.
"""
