"""Pages of LISTs from the member that owns the LIST: it requests them from the bucket for all members."""

from __future__ import annotations

from cachetools import TTLCache

from outrider.core.cluster.member import Member
from outrider.core.cluster.messages import LISTS_WIRE, ListedPage, ListRequest
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.model import ObjectRef
from outrider.engine.cluster.peer_reader import PeerReads
from outrider.engine.listing.kept_pages import ListingKey, prefix_of
from outrider.ports import PeerTransport

# For how long a member is not requested that failed, and a LIST of which its owner had no page: one that the bucket
# refuses, or that is not to be kept.
_FAILED_S, _NO_PAGE_S = 30.0, 60.0
_FAILED_MAX, _NO_PAGE_MAX = 1000, 10_000


class PagesOfMembers:
    """Implements `engine.listing.lists.MemberPages`. A LIST is owned as the first block of an object would be that is
    named by its prefix, so that all pages of it come from one member."""

    def __init__(self, reads: PeerReads, transport: PeerTransport) -> None:
        self._reads = reads
        self._transport = transport
        clock = reads.requests.clock
        self._failed: TTLCache[str, None] = TTLCache(_FAILED_MAX, _FAILED_S, clock)
        # By the hash of the request.
        self._no_page: TTLCache[int, None] = TTLCache(_NO_PAGE_MAX, _NO_PAGE_S, clock)

    def owner(self, key: ListingKey) -> Member | None:
        if hash(key) in self._no_page:
            return None
        owners = self._reads.candidates(ObjectRef(key[0], prefix_of(key)), 0)
        if not owners or owners[0].wire[1] < LISTS_WIRE or owners[0].name in self._failed:
            return None
        return owners[0]

    async def page(self, owner: Member, key: ListingKey) -> ListedPage | None:
        requests = self._reads.requests
        request = ListRequest(requests.members.view.me.name, *key)
        watched = requests.begin(owner)
        # A LIST may take the bucket much longer than a body.
        watched.has_deadline = False
        try:
            page = await watched.awaited(self._transport.request(owner, request, ListedPage))
        except PeerFailed as error:
            requests.members.failed(owner, error.why, of_block=False)
            if error.why != "busy":
                self._failed[owner.name] = None
            return None
        finally:
            requests.over(watched)
        if page.packed:
            return page
        self._no_page[hash(key)] = None
        return None
