"""The older transport, HTTP+SSE: where its clients post, and the streams that answer them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urljoin, urlsplit

from mcp_tool_filter.conversation.conversation import Conversation

LONGEST_ENDPOINT = 8 * 1024  # characters of a URL


@dataclass(slots=True, eq=False)
class LegacyStream:
    """The open GET of a client of the older transport: all its answers go there."""

    send: Callable[[bytes], bool]
    conversation: Conversation
    target: str = ""
    """Where the client posts; known once the upstream has named it."""


@dataclass(slots=True)
class _Endpoint:
    streams: list[LegacyStream] = field(default_factory=list)
    was_shared: bool = False
    """Two streams had it at once: nobody can tell any more whose a request is."""


class LegacyEndpoints:
    """Paths to which clients of the older transport post, and the streams they were named on."""

    def __init__(self) -> None:
        self.endpoints: dict[str, _Endpoint] = {}
        """By path and query. Most requests only look whether there are any."""

    def open(self, page: str, url: str, stream: LegacyStream) -> None:
        """Remember the endpoint that a stream, opened at ``page``, has named."""
        self.close(stream.conversation)  # it may have named another before
        place = urlsplit(urljoin("http://us" + page, url))
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
        """Return where our answers go; None if the client could be another."""
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
