"""The answer to a member's question, on its way to the peer port."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.core.cluster.peer_messages import NOT_TOLD, Confirmed, Sending
from outrider.core.model import Extent
from outrider.engine.read.body_pieces import Body


@dataclass(frozen=True, slots=True)
class PeerReadAnswer:
    """`status`:

    200  the version alone: nothing else was asked for, the extent lies past its end, or it is not the known one
    206  the bytes of `extent`, in `body`
    304  the known version is the bucket's; no bytes were asked for
    404  not here, with `only_if_here`; or nothing that a peer may be told
    412  the bucket has another version than the known one
    503  too busy

    `confirmed` goes with 200, 206 and 304. `digest`, `sending`: as those of `PeerReply`. The port closes `body`.
    """

    status: int
    confirmed: Confirmed | None = None
    extent: Extent | None = None
    digest: str = ""
    body: Body | None = None
    sending: Sending = NOT_TOLD
