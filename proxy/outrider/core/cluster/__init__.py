"""How many nodes are one cache, from the ground up. Everything here is pure: facts and times come in, decisions go out.

1. A `Member` is an Outrider of the cluster. Its name is not its address: a node that returns under another address is
   the same member, with the same blocks on its disk.
2. `membership` reduces what was received (lists of a source of members, hellos, failures) to a `View` of two speeds.
   The ring is slow: the members by which blocks are placed, those included that have been away for a short while. The
   alive members are fast: those that answer, by this node's own observation. Those of the ring that are alive and do
   not leave are acting: a missing block is requested from the first of them, its acting owner. A list that lost most
   members at once is doubted for a while, and the last good one outlives the process (`believed_list`).
3. `ownership` places blocks on the ring: weighted rendezvous hashing of bucket, key and block index. The first member
   is the block's owner, the next ones are its successors. The owner of an object's first block is its authority: it
   knows the object's version.
4. `peer_health` has the deadline of each request to a member: a first byte and a rate that the bucket would give as
   well. A member that missed one, or failed, is requested again after a pause that grows.
5. `peer_messages` are the reads of members from each other, and `peer_wire` is their form. All other messages are JSON,
   and stand in `messages`: what clients read and will read, for the planners (`core.ahead`) of a job whose ranks sit on
   several nodes; what a member has of each dataset; maintenance commands for the owners of the blocks. A request that
   came from a peer is never passed on to a third member.
6. `forget_numbers` numbers the names that a write makes doubtful, so that a member notices that it missed one. Such
   a member forgets everything that it believes, which costs questions to the bucket.
7. `replay_guard` refuses a signed request received before.

Nothing here needs two members to agree. Members that see different rings ask the wrong one, which answers all the same.
"""
