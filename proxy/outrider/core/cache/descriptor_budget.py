"""The budget of file descriptors: how the limit on open files is shared, so that no part takes those of another.

A client that is accepted without a descriptor left to answer it would wait for its own time-out.
"""

from __future__ import annotations

from dataclasses import dataclass

# The process at rest has 20 (measured with uvloop). The rest is for files that a thread opens for a moment
# (8 threads of the store, 8 readers), for mounts that get descriptors (8), for name lookups and for the admin port.
_OWN = 44
# The socket, and its duplicate for `sendfile`; a TLS connection has one alone.
_OF_A_CLIENT = 2
# Beside the connection under way, one may be idle in the pool of the other HTTP client.
_OF_AN_EXCHANGE = 2
_EXCHANGES_PART, _FILLS_PART, _TURNED_AWAY_PART = 16, 16, 32
_EXCHANGES_MIN = _FILLS_MIN = _CLIENTS_MIN = 2
_TURNED_AWAY_MIN = 4
# These clients are refused with a reply, which costs little; more are cut.
_TURNED_AWAY_MAX = 256


class TooFewDescriptors(ValueError):
    """The limit on open files is too low to serve; the text says how many are needed."""


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """`clients`: connections that are served. `turned_away`: connections beyond these that are refused with a reply.
    `exchanges`: requests to the origin at once. `fills`: block files being written. `block_files`: open block files;
    each client may read one."""

    clients: int
    turned_away: int
    exchanges: int
    fills: int
    block_files: int

    @classmethod
    def of(cls, open_files: int, *, clients_max: int, exchanges_max: int, fills_max: int) -> DescriptorBudget:
        """The shares of `open_files` descriptors; the other arguments are limits of the settings.

        Raises TooFewDescriptors.
        """
        rest = open_files - _OWN
        exchanges = min(exchanges_max, max(_EXCHANGES_MIN, rest // _EXCHANGES_PART))
        fills = min(fills_max, max(_FILLS_MIN, rest // _FILLS_PART))
        turned_away = min(_TURNED_AWAY_MAX, max(_TURNED_AWAY_MIN, rest // _TURNED_AWAY_PART))
        left = rest - exchanges * _OF_AN_EXCHANGE - fills - turned_away * _OF_A_CLIENT
        clients = left // (_OF_A_CLIENT + 1)
        if clients < _CLIENTS_MIN:
            least = _OWN + _EXCHANGES_MIN * _OF_AN_EXCHANGE + _FILLS_MIN + _TURNED_AWAY_MIN * _OF_A_CLIENT
            raise TooFewDescriptors(
                f"the limit on open files is {open_files}, and {least + _CLIENTS_MIN * (_OF_A_CLIENT + 1)} are needed"
            )
        return cls(min(clients_max, clients), turned_away, exchanges, fills, clients)
