"""Requests that go to the origin as they are: writes, and reads that the cache does not answer.

1. `upload.upload_of` wraps the client's body. The body is verified on its way: its hash, the signatures of its chunks,
   its trailers. The last bytes are held back until all has held, so that the origin never commits a bad body.
   `form_upload` does the same for a browser's upload, whose fields are read before its file.
   A large body is verified in the thread that passes it on (`Upload.in_thread`), if the adapter has such a thread.
2. `passthrough.Passthrough.send` notes the names that the request may change (on disk, so that a restart does not
   believe their old versions), and makes the version cache and the LIST cache forget them.
3. The request is sent, a write exactly once. A read without a body may be retried.
4. When the head of the answer has come, the names are forgotten again: a read in between may have cached the old
   version again. When the body of the answer has ended they are forgotten once more, since CompleteMultipartUpload and
   COPY answer 200 before they have ended. Invariant: a GET through this proxy that begins after the answer to a write
   never gets an older version.
5. A write without an answer, or with one that says to retry, leaves its names in doubt: for a while each read of them
   asks the origin, which may carry the write out later.

Entry points: `passthrough.Passthrough`, `upload.upload_of`, `upload.whole_body`, `form_upload.incoming_form`.
"""
