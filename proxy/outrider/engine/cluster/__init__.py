"""The cluster as one node sees it: its members, and the reads of blocks and versions from them.

1. `LiveMembers` follows the source of members and greets each of them at regular intervals. `core.cluster.membership`
   decides what follows: the ring, by which blocks are placed, and who may be asked now.
2. `PeerReads` is called by fills (`engine.fill.peer_block`) and by the version lookup
   (`engine.read.version_from_peers`). It names the members to request: the acting owner, and one more. A
   `RequestedBlock` goes from one to the next; a body that breaks goes on at its offset. Then the source of missing
   blocks asks the bucket.
3. `PeerRequests` gives each request its deadline (`core.cluster.peer_health`), and finds members that hang: a request
   that brings nothing for half a second is followed by a hello on another connection.
4. `PeerService` is the other side. It answers from the store, from a flight that the bucket fills, or from the bucket,
   and never waits for another member: members that see different rings answer each other without a deadlock. Only the
   disk of the previous owner of a block is asked, which waits for nobody.
5. `Outbox` has a queue for each member, and one message to it under way: forgets, reads and orders.
   `ForgetQueues` notifies all alive members of each write, before it is sent and after its answer. A gap in
   its numbers makes everything doubtful that this node believed (`Beliefs`). `ReadsSender` reports in batches the reads
   of clients of this node. `engine.ahead` takes theirs, and has the orders.
6. `MemberCommands` passes maintenance commands on. `engine.maintenance.commands_across_members` decides which.
"""
