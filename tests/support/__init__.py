"""A real S3 bucket, bad weather in front of it, and processes that never outlive the tests."""
