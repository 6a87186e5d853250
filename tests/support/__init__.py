"""The parts that tests of several folders share. A part that the tests of one folder need lies in that folder.

A real S3 server, and what stands before it:

- `bucket`: SeaweedFS on loopback and free ports, with signatures checked
- `simulator`: an S3 endpoint before it, with chosen rates, latency and faults, in this process or another
- `conditions`: these rates and faults, and the counters of the simulator
- `simulator_exchange`: one connection of the simulator
- `namespaces`: hosts on one machine whose links have a rate, and go down
- `tls`: a certificate with its authority, and TLS before a plain server
- `playground`: a small dataset on a real server, for users without a bucket (`make playground`)

Other servers, and fakes at the ports of the engine:

- `fakes`: the origin, the clock, the tasks, the plans
- `fake_peers`: other members, and a real wire between two sides
- `member_sources`: a world for each source of members
- `fake_kube`: the API server that the operator calls
- `fake_kubectl`: `kubectl` and `helm` that record what they would apply
- `odd_origin`, `oddities`: an origin that answers as AWS does, save for the oddities set, and these
- `recorder`: an origin that records requests byte by byte

What is tested:

- `proxy`: a proxy in this process, `outrider serve`, other commands
- `watched`: a proxy of which a test sees what its fast path did with each request
- `nodes`: `outrider serve` as the members of a cluster
- `quick_hellos`: `outrider` whose members greet each other more often, for `nodes`
- `engine`, `members`: an engine with real parts and a fake origin, and such engines as the members of a cluster
- `planner`: a store that obeys a planner and checks its decisions
- `seeds`: which seeds the planners of tests try
- `chart`: the Helm chart, rendered
- `image`: the image, by its Dockerfile
- `pods`: pods as the operator gets them
- `api_calls`: each permission that the operator needs, with the call that needs it

Clients and requests:

- `rawhttp`: HTTP by hand, one connection or many at once
- `signed_requests`, `forms`: signed requests and uploads, and browser forms
- `tenants`: two tenants, and their requests
- `control_bucket`: batches and commands
- `client_access`, `s3_clients`: the contract of an S3 client, and the clients that are driven
- `later`: a library that is imported when it is first used

Faults, and the work that is done:

- `trials`: how often a fault is tried, objects whose every byte is known, and the table of the results
- `faulty_disk`, `damage`: disks that hang and fail, and files as power loss leaves them
- `kill_points`: `outrider` that dies at a chosen file operation
- `event_loops`: virtual time, and scheduling in a seeded order
- `counted_work`, `held_memory`: how much Python runs, and how much memory an object holds
- `logs`: the log records of a test

Processes:

- `child`: processes that die with the tests, and their open files
- `forkserver`, `forked_command`, `aws`: Python programs forked from one that has imported them
- `s3_models`, `aws_models`: what botocore knows of S3, for such a one
- `lowest_versions`, `release`: `make test-lowest`, `make release`
- `system_programs`: `make test-tools`, `make bench-tools`

Documentation:

- `pages`, `shellpage`: a page taken apart, and its shell blocks run
- `generated_pages`: the pages that are made from the code
"""
