"""The state of each dataset: its names, its jobs, its cached objects, and when these are read next.

1. A *dataset* is the set of objects whose keys have one template: `train-000123.tar` belongs to `train-{}.tar`
   (`templates`). Names with nothing in common but their folder, or folders with nothing in common but the folder above,
   are merged into one dataset.
2. Within its dataset, each object goes by its *index*, the place in which its key was met (`object_names`). All
   tables of larger size are arrays by index. `DiscoveryState` says how far it is known which objects exist.
3. A *job* is one client of the dataset. Its reads are split into *epochs*, in which no object is read twice (`order`
   infers them). `job_table` has the jobs, and the epochs that predict the next reads.
4. `next_use_ranking` ranks the cached objects by their next read: eviction takes the one that is needed last.
5. `Dataset` holds these parts together and hands them each event.
6. `registry` finds the dataset of a key, and bounds the number of datasets and of names. It compares the farthest
   objects of all datasets. Over a restart, names and orders are kept (`saved_datasets`); jobs are not.

The entry points are `registry.DatasetRegistry`, `dataset.Dataset` and `templates.Templates`.
"""
