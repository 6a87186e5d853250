"""The cluster as one node sees it: its members, and the reads of blocks and versions from them."""
