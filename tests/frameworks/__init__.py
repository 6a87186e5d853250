"""Frameworks that read and write S3, each run as docs/frameworks.md has it: `make frameworks`.

1. `catalogue` names each framework and what its environment installs.
2. `environments` makes that environment, once.
3. `data` fills the bucket that the page's code reads.
4. `each_framework` runs the page's own blocks by `outrider run`, in the page's order, and looks at the bytes that went
   through the proxy.

pytest does not find this room by itself, since no file is named `test_*`: what pip installs here takes gigabytes.
"""
