"""Fail closed on any error in our code: mitmproxy would log it and forward the flow.

Each hook has its code in ``try`` and ends with::

    except Exception as error:
        fail_closed(flow, error, self.refuse)
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.mitmproxy.forward.streams import cut
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.observers.verdict_log import Once

log = logging.getLogger(__name__)
once = Once()


def fail_closed(flow: HTTPFlow, error: Exception, refuse: Callable[[HTTPFlow], None]) -> None:
    """Refuse a flow that cannot be judged; cut it if even that fails. Never raises."""
    path = shown_url(flow.request.path)
    if isinstance(error, ProtocolError):
        once.log(log, logging.WARNING, "Refused %s: %s", path, error)
    else:
        log.error("cannot judge %s", path, exc_info=error)
    try:
        refuse(flow)
    except Exception:
        log.exception("cannot refuse %s", path)
        flow.response = None
        cut(flow)
