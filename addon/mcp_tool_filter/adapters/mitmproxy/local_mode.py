"""mitmproxy's local mode: has it started, and does it go on?

mitmproxy says that it has started as soon as it has tried to, and goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mitmproxy.proxy.mode_servers import LocalRedirectorInstance, ServerInstance
from mitmproxy.proxy.mode_specs import LocalMode
from mitmproxy_rs.local import LocalRedirector

from mcp_tool_filter.errors import StartError

_MOMENT = 1.0  # seconds within which it fails, if it does
_WHAT = "mitmproxy's local mode could not start"
_ENDED = "Error: mitmproxy's local mode has ended\nLocal programs would no longer be filtered"


async def watch_redirector(
    instance: ServerInstance[LocalMode], on_end: Callable[[str], None]
) -> asyncio.Future[None]:
    """Call ``on_end`` when local mode ends. Raises StartError if it has not started."""
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
