"""Outrider: an S3 caching proxy for training jobs, which prefetches the shards that a job will read next."""

__version__ = "0.2.0"
