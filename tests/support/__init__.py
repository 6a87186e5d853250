"""Test support: a real S3 bucket, a faulty network in front of it, and processes that never outlive the tests."""
