"""Turns all of ``fast`` on. Nothing else imports these modules, and without them all works alike.

``--set fast=false`` (the launcher's ``--no-fast``) leaves them off: mitmproxy's own code then does
the work, more slowly. That tells whether a fault is ours or mitmproxy's.
"""

from __future__ import annotations

from mitmproxy.master import Master

from mcp_tool_filter.adapters.mitmproxy.fast.connections import (
    hook_runner,
    install_quick_connections,
)
from mcp_tool_filter.adapters.mitmproxy.fast.headers import install_quick_headers
from mcp_tool_filter.adapters.mitmproxy.fast.hooks import make_quick
from mcp_tool_filter.adapters.mitmproxy.fast.malloc import keep_room
from mcp_tool_filter.adapters.mitmproxy.fast.messages import install_quick_checks
from mcp_tool_filter.adapters.mitmproxy.fast.option_values import make_values_quick
from mcp_tool_filter.adapters.mitmproxy.fast.routing import QuickHttpLayer
from mcp_tool_filter.adapters.mitmproxy.safe.installed import (
    use_shortcuts,
)


def speed_up(master: Master) -> None:
    """Let this process and this master take the shortcuts from now on."""
    use_shortcuts(QuickHttpLayer, hook_runner)
    install_quick_connections()
    install_quick_headers()
    install_quick_checks()
    keep_room()
    make_quick(master.addons)
    make_values_quick(master.options)
