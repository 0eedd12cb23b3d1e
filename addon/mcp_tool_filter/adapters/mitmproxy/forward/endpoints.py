"""Forward proxies: find the MCP endpoints, and the listener of each.

The upstreams of a forward proxy are not configured. A URL becomes an endpoint when MCP is sent to
it, and gets its own listener; an upstream of the older transport names further URLs on its stream.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.hidden import real_request
from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
from mcp_tool_filter.adapters.mitmproxy.forward.origins import name_for, origin_of, path_of
from mcp_tool_filter.conversation.memory import unlisted
from mcp_tool_filter.http.listener import Listener, open_listener
from mcp_tool_filter.http.origin import Origin

MOST_LISTENERS = 1000
"""The least recently used is forgotten first."""
MOST_ENDPOINTS = 10_000

type Attach = Callable[[Listener], None]
"""Called with a new listener before its first message is judged."""


class Endpoints:
    """The endpoints of all forward proxies."""

    def __init__(self, listeners: Listeners, attach: Attach) -> None:
        self._listeners = listeners
        self._attach = attach
        self._names: OrderedDict[tuple[str, str], str] = OrderedDict()  # by origin and target
        self._at: dict[str, list[str]] = {}  # by origin
        self._answered: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.urls: set[str] = set()
        """The URLs to which MCP was sent, without queries."""

    def has(self, origin: str, target: str) -> bool:
        """Tell whether a URL is an MCP endpoint, as far as answers have shown."""
        is_known = (origin, path_of(target)) in self._answered
        return is_known or self._legacy_name(origin, target) is not None

    def note_answer(self, flow: HTTPFlow) -> None:
        """Note the answer to an MCP request: if it succeeded, its URL is an endpoint."""
        if flow.response and flow.response.status_code < 300:
            key = origin_of(flow.request).url, path_of(flow.request.path)
            self._answered[key] = None
            self._answered.move_to_end(key)
            while len(self._answered) > MOST_ENDPOINTS:
                self._answered.popitem(last=False)

    def listener_of(self, flow: HTTPFlow) -> Listener:
        """Return the listener of an MCP flow; open one if the endpoint is new."""
        return self._listeners.by_mode[self._name_of(flow)]

    def _name_of(self, flow: HTTPFlow) -> str:
        """Return the name of a flow's listener."""
        origin, target = origin_of(flow.request), real_request(flow).path
        if name := self._legacy_name(origin.url, target):
            return name
        key = (origin.url, target)
        if key not in self._names:
            self._names[key] = self._open(origin, target)
        self._names.move_to_end(key)
        return self._names[key]

    def _legacy_name(self, origin: str, target: str) -> str | None:
        """Return the name of the listener whose stream named this endpoint."""
        for name in self._at.get(origin, ()):
            if target in self._listeners.by_mode[name].legacy.endpoints:
                return name
        return None

    def _open(self, origin: Origin, target: str) -> str:
        name = name_for(origin, target, self._listeners.by_mode.keys())
        while len(self._names) >= MOST_LISTENERS:
            (at, _), oldest = self._names.popitem(last=False)
            self._at[at].remove(oldest)
            del self._listeners.by_mode[oldest]
        listener = open_listener(
            upstream=origin.url,
            config=self._listeners.config,
            fetched=unlisted(target),
            observe=self._listeners.observer_for(name),
        )
        listener.is_forward = True
        if len(self.urls) < MOST_ENDPOINTS:
            self.urls.add(origin.url + path_of(target))
        self._listeners.by_mode[name] = listener
        self._at.setdefault(origin.url, []).append(name)
        self._attach(listener)
        return name
