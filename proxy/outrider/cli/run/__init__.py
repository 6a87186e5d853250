"""`outrider run -- CMD`: a proxy for one command.

1. `command` loads the settings (`own_proxy`), starts the proxy on free loopback ports, and installs the signal
   handlers.
2. `child_environment` makes the command's environment: AWS_ENDPOINT_URL is the proxy, OUTRIDER_STATUS_URL its admin
   port.
3. `child_process` starts the command with this process' own stdin, stdout and stderr, passes signals on to it, and
   waits for its end.
4. The proxy drains and stops. `summary` reports on the reads and why they waited. The command's exit status is ours.
"""

from outrider.cli.run.command import run

__all__ = ["run"]
