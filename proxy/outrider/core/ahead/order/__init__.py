"""Orders: in which sequence a job reads the objects of a dataset, epoch after epoch.

- An `JobEpoch` holds what one epoch of one job is expected to read (the agenda), what it has read (the log), and how
  likely the agenda's order is the true one. Its `Frontier` is where the readers are, its `FetchCursor` where prefetch
  is. At the end of an epoch its log becomes the agenda of the next one.
- An `EpochDetector` counts the reads of one client to epochs: a repeat ends an epoch, or begins that of another job
  behind the same address, or is chance (`RepeatEvidence`). `PartGuess` finds the part of the dataset that one of
  several nodes reads. A `SharedEpoch` is read by several clients together.

The order of an epoch is known in one of three ways. It repeats the order of the last epoch, or a `SavedOrder` of an
earlier job. It is announced by a hint, and `AnnouncedOrder` merges the orders of several workers. Or a seed draws it:
`OrderSearch` looks for a seed that explains the first reads, of a PyTorch sampler (`torch_sampler`) or of WebDataset's
workers (`webdataset_search`, `webdataset_shuffle`), and works out the rest; `SeedState` is what is known of the seed.

This package knows no datasets: `OrderSearch` asks for what it needs of one by a protocol.
"""
