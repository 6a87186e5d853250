"""Outrider: an S3 caching proxy that rides ahead of a training job."""

__version__ = "0.1.0"
