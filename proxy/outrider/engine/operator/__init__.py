"""The loops of `outrider operator`.

1. `leader` holds the lease: of several operators one acts. All of them serve the webhook.
2. `holdings_watch` asks the caches for their datasets, so that the webhook answers from memory.
3. `gates` opens the gates of pods, by the data that `warming` has warmed in a zone where they can run. `namespaces`
   knows whose pods they are.
4. `wish_warnings` writes Events about pods whose annotations make no sense, and that did not wait for `gates`.
5. `rights` knows whether this operator may open gates. Otherwise it closes none.
6. `certificate_keeper` keeps the certificates of the webhook.

`operator_ports` has the ports; a fault of either never keeps a pod from starting.
"""
