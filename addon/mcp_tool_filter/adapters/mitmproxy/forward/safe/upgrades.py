"""Handle what follows an answer of 101: only a WebSocket, whose messages are judged.

No connection becomes a raw tunnel, because we could not judge its content.
"""

from __future__ import annotations

import logging
import sys

from mitmproxy.proxy import events
from mitmproxy.proxy.layers.http import SendHttp
from mitmproxy.proxy.layers.http._events import ErrorCode, RequestProtocolError
from mitmproxy.proxy.layers.websocket import Fragmentizer, WebsocketLayer
from mitmproxy.utils import human

from mcp_tool_filter.adapters.mitmproxy.forward.safe.endings import EndingStream
from mcp_tool_filter.adapters.mitmproxy.forward.safe.last_look import NotJudged, look_at_messages
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps
from mcp_tool_filter.observers.verdict_log import Once

log = logging.getLogger(__name__)
_once = Once()

_LONGEST_MESSAGE = 20 * 1024 * 1024
_MOST_FRAMES = 100_000
# mitmproxy would split a message that we change, even in the middle of a character.
Fragmentizer.FRAGMENT_SIZE = sys.maxsize


class UpgradedStream(EndingStream):
    """A stream that may become a WebSocket."""

    @property
    def socket_bytes(self) -> int:
        """The bytes of unfinished messages of a WebSocket."""
        sockets = self.child_layer
        if not isinstance(sockets, WebsocketLayer) or not hasattr(sockets, "client_ws"):
            return 0
        return sum(map(len, [*sockets.client_ws.frame_buf, *sockets.server_ws.frame_buf]))

    def flow_done(self) -> Steps:
        """Never open a raw tunnel: we can judge only a WebSocket."""
        assert self.flow.response
        if self.flow.response.data.status_code == 101 and not self.flow.websocket:
            self.doomed = "refusing to open a raw tunnel"
            return
        yield from super().flow_done()

    def passthrough(self, event: events.Event) -> Steps:
        """Forward a WebSocket's messages, with a length limit that mitmproxy lacks."""
        try:
            yield from super().passthrough(event)
        except NotJudged as error:
            _once.log(log, logging.ERROR, "Closed a WebSocket: %s", error)
            yield from self._close_sockets(str(error))
            return
        sockets = self.child_layer
        if not isinstance(sockets, WebsocketLayer) or not hasattr(sockets, "client_ws"):
            return
        look_at_messages(self, sockets)
        most = human.parse_size(self.context.options.body_size_limit) or _LONGEST_MESSAGE
        for end in (sockets.client_ws, sockets.server_ws):
            if len(end.frame_buf) > _MOST_FRAMES or sum(map(len, end.frame_buf)) > most:
                end.frame_buf = [b""]
                yield from self._close_sockets("a message that is too long")

    def _close_sockets(self, why: str) -> Steps:
        code = ErrorCode.PASSTHROUGH_CLOSE
        yield SendHttp(RequestProtocolError(self.stream_id, why, code), self.context.server)
        yield SendHttp(self.upstream_error(why, code), self.context.client)
