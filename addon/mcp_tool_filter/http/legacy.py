"""The older transport, HTTP+SSE: the endpoints where clients post, and the streams that answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from mcp_tool_filter.conversation.conversation import Conversation

LONGEST_ENDPOINT = 8 * 1024  # characters of a URL


@dataclass(slots=True, eq=False)
class LegacyStream:
    """The open GET stream of a client of the older transport; all its answers go there."""

    send: Callable[[bytes], bool]
    conversation: Conversation
    page: str = ""
    """Where the client opened the stream."""
    target: str = ""
    """The endpoint where the client posts; set once the upstream has named it."""


@dataclass(slots=True)
class _Endpoint:
    streams: list[LegacyStream] = field(default_factory=list)
    was_shared: bool = False
    """True if two streams had it at once, so that we cannot tell whose a request is."""


class LegacyEndpoints:
    """The endpoints of the older transport, and the streams on which they were named."""

    def __init__(self) -> None:
        self.endpoints: dict[str, _Endpoint] = {}
        """Endpoints by path and query. Most requests only check whether there are any."""

    def open(self, page: str, url: str, stream: LegacyStream) -> None:
        """Remember the endpoint named on a stream that was opened at ``page``."""
        self.close(stream.conversation)  # the stream may have named another endpoint before
        place = urlsplit(urljoin("http://us" + page, url))
        stream.page = page
        stream.target = place.path + (f"?{place.query}" if place.query else "")
        endpoint = self.endpoints.setdefault(stream.target, _Endpoint())
        endpoint.streams.append(stream)
        endpoint.was_shared = endpoint.was_shared or len(endpoint.streams) > 1

    def close(self, conversation: Conversation) -> None:
        """Forget a stream that has ended."""
        for target, endpoint in list(self.endpoints.items()):
            endpoint.streams = [
                one for one in endpoint.streams if one.conversation is not conversation
            ]
            if not endpoint.streams:
                del self.endpoints[target]

    def clear(self) -> None:
        self.endpoints.clear()

    def stream_of(self, target: str) -> LegacyStream | None:
        """Return the stream for our answers; None if we cannot tell which client posts."""
        endpoint = self.endpoints.get(target)
        if endpoint is None or endpoint.was_shared:
            return None
        return endpoint.streams[0]

    def __contains__(self, target: str) -> bool:
        return target in self.endpoints

    def __iter__(self) -> Iterator[LegacyStream]:
        return iter([one for endpoint in self.endpoints.values() for one in endpoint.streams])

    def __len__(self) -> int:
        return len(self.endpoints)
