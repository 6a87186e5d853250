"""A read-only FUSE file system before a proxy: the client that `outrider mount` starts by default.

1. `device` mounts by fusermount3, and gets the descriptor over which the kernel talks. `messages` are its messages.
2. `file_system` answers them. `nodes` are the files and directories that are known, `listings` their LISTs under way,
   and `listed` says how far a LIST is believed.
3. `bucket` asks the proxy: LIST and HEAD for names and attributes, GET for bytes. `plain_gets` sends those first that
   need no signature. `reads` turns the reads of a file that go on into a stream.
4. `loans` are descriptors of block files, which a proxy on this machine gives: their bytes need no GET.

The kernel keeps the pages of a file, and opens files by itself, so a file that was read before is read again without a
request. Each version of an object is a file of its own, with another number: pages and open files never mix versions.

The messages are packed here, and by no library: pyfuse3 has no wheels, so each image that trains would need a compiler
and libfuse's headers for the ten messages that a read-only file system takes. fusermount3 mounts, so users need no
rights of their own.
"""
