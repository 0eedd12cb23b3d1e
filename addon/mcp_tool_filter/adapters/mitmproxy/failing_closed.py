"""What we stumble over ends closed: mitmproxy would log an exception and send the flow on."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.streams import cut
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.observers.once import Once
from mcp_tool_filter.observers.report import shown_url

log = logging.getLogger(__name__)
once = Once()


class FailingClosed:
    """Answers what we stumble over: mitmproxy would log the exception and send the flow on."""

    __slots__ = ("_flow", "_refuse")

    def __init__(self, flow: HTTPFlow, refuse: Callable[[HTTPFlow], None]) -> None:
        self._flow, self._refuse = flow, refuse

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, Exception):
            return False
        path = shown_url(self._flow.request.path)
        if isinstance(error, ProtocolError):
            once.log(log, logging.WARNING, "Refused %s: %s", path, error)
        else:
            log.exception("cannot judge %s", path)
        refuse_or_cut(self._flow, self._refuse)
        return True


def refuse_or_cut(flow: HTTPFlow, refuse: Callable[[HTTPFlow], None]) -> None:
    """Let nothing pass, also when there is something wrong with our refusal."""
    try:
        refuse(flow)
    except Exception:
        log.exception("cannot refuse %s", shown_url(flow.request.path))
        flow.response = None
        cut(flow)
