"""Shows people how the proxy works: pure sums and estimates, for `engine.status` and the dashboard.

1. `usage` adds up each request under its dataset and its reader: bytes by source, and how long the reader waited for
   the proxy or the proxy for the reader. `usage.Savings` compares the requests of clients with those to the bucket.
2. `miss_ratio` estimates the hits of a smaller or larger cache: it simulates small LRU caches on a sample of the names.
3. `load` turns samples of the proxy's parts into shares: how busy its CPU was, and for whom its reads waited.
4. `bottleneck` names the slow part in words. It uses the waiting times of `usage`, the curve of `miss_ratio` and the
   `load`. `next_step` has a sentence for each: the command or the setting that helps.
5. `dataset_map` draws a dataset as a strip of letters, one per object: cached, on its way, read, absent.
6. `rates` turns growing totals into rates per second; `recent_errors` keeps the last errors, each counted;
   `trace_attributes` names the object of a request in OpenTelemetry's terms.

Nothing here decides anything in the proxy. Importers name the module that they use.
"""
