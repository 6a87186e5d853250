"""The whole proxy and its tools, against a real S3 server with real clients."""
