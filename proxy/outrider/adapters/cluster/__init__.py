"""The sources of members, this member's own account, and the client of the wire between members.

1. `sources` chooses the source that the setting `peers` names. All sources keep the contract of `ports.MemberSource`: a
   list when it is first known and whenever it has changed, and nothing while the source is away. `member_lists` has the
   parts that they share.
2. `file_source` reads a file, `dns_source` looks a name up, `kubernetes_source` watches the endpoints of a Service,
   `slurm_source` reads the nodes of a job. The two last ones import libraries that are extras, and are imported only
   where they are used.
3. `own_account` finds the name and the address that this member gives the others.
4. `peer_key` and `peer_tls` read the key of the cluster and the certificates, and read them again when they change.

A source says who may be a member. Members that answer are found by asking them: see `core.cluster`.
"""
