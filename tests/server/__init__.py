"""End-to-end tests: the whole proxy and its commands against a real S3 server, with real clients."""
