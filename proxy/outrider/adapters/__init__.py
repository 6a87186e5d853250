"""The implementations of the ports: everything that touches the network, the disk or the process.

- `origin`: HTTP requests to the S3 store behind the proxy (the port `Origin`)
- `disk`: the block store in the cache directory (the port `BlockStore`)
- `state`: small files in the cache directory that carry state from a stop to the next start
- `process`: logs, limits, heap and event loop of this process

The engine and `http` know only `outrider.ports`; `composition` connects the two. `sealed_file` is shared by `disk` and
`state`: it reads and writes small files that are private, replaced whole and checked.
"""
