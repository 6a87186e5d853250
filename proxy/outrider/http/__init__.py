"""The doors that speak HTTP: the S3 port and the admin port."""
