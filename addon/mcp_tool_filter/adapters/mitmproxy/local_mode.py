"""Watch mitmproxy's local mode: whether it has started and still runs.

mitmproxy reports it as started as soon as it has tried, and continues without it if it fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mitmproxy.proxy.mode_servers import LocalRedirectorInstance, ServerInstance
from mitmproxy.proxy.mode_specs import LocalMode
from mitmproxy_rs.local import LocalRedirector

from mcp_tool_filter.errors import StartError

_MOMENT = 1.0  # seconds; if it fails to start, it does so within them
_WHAT = "mitmproxy's local mode could not start"
_ENDED = "Error: mitmproxy's local mode has ended\nLocal programs would no longer be filtered"


async def watch_redirector(
    instance: ServerInstance[LocalMode], on_end: Callable[[str], None]
) -> asyncio.Future[None]:
    """Call ``on_end`` when local mode ends. Raises StartError if it did not start."""
    problem = LocalRedirector.unavailable_reason() or instance.last_exception
    redirector = LocalRedirectorInstance._server
    if problem or redirector is None:
        raise StartError(_WHAT, why=" ".join(str(problem or "It gives no reason").split()))
    watch = asyncio.ensure_future(redirector.wait_closed())
    await asyncio.wait([watch], timeout=_MOMENT)
    if watch.done():
        raise StartError(_WHAT, why="The system refused: it needs root rights")
    watch.add_done_callback(lambda _: on_end(_ENDED))
    return watch
