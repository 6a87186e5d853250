"""The cluster as one node sees it: its members, and the reads of blocks and versions from them.

1. `Members` follows the source of members and greets each of them at regular intervals. `core.cluster.membership`
   decides what follows: the ring, by which blocks are placed, and who may be asked now.
2. `PeerReads` is asked by fills (`engine.fill.peer_block`) and by the version lookup
   (`engine.read.version_from_peers`). It names the members to ask: the owner or its stand-in, and one more. An
   `AskedBlock` asks one after the other; a body that breaks goes on at its offset at the next one. Then the source of
   missing blocks asks the bucket.
3. `PeerWatch` finds members that hang: a reply that brings nothing for half a second is followed by a hello on another
   connection. `core.cluster.peer_health` says which members are left out: broken ones, and those that are slower than
   the bucket.
4. `PeerService` is the other side. It answers from the store, from a flight that the bucket fills, or from the bucket,
   and never waits for another member: members that see different rings answer each other without a deadlock. Only the
   disk of the previous owner of a block is asked, which waits for nobody.
5. `Forgets` tells all alive members of each write, before it is sent and after its answer. The messages are numbered. A
   gap in the numbers of a member makes everything doubtful that this node believed (`Beliefs`).
6. `ToldReads` tells all alive members in batches what clients of this node read. `engine.ahead` hears of theirs.
7. `CommandsElsewhere` passes maintenance commands on. `engine.maintenance.together` decides which.
"""
