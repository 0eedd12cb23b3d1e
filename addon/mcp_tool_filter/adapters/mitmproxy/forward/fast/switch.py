"""Switch all of ``fast`` on. Only this module imports the others, and all works the same without
them.

``--set fast=false`` (the launcher's ``--no-fast``) leaves them off: then mitmproxy's own code does
the work, more slowly. That shows whether a fault is ours or mitmproxy's.
"""

from __future__ import annotations

from mitmproxy.master import Master

from mcp_tool_filter.adapters.mitmproxy.forward.fast.connections import (
    hook_runner,
    install_quick_connections,
)
from mcp_tool_filter.adapters.mitmproxy.forward.fast.headers import install_quick_headers
from mcp_tool_filter.adapters.mitmproxy.forward.fast.hooks import make_quick
from mcp_tool_filter.adapters.mitmproxy.forward.fast.messages import install_quick_checks
from mcp_tool_filter.adapters.mitmproxy.forward.fast.option_values import make_values_quick
from mcp_tool_filter.adapters.mitmproxy.forward.fast.routing import QuickHttpLayer
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import (
    use_shortcuts,
)
from mcp_tool_filter.adapters.serving.malloc import keep_free_memory


def speed_up(master: Master) -> None:
    """Use the shortcuts in this process and this master from now on."""
    use_shortcuts(QuickHttpLayer, hook_runner)
    install_quick_connections()
    install_quick_headers()
    install_quick_checks()
    keep_free_memory()
    make_quick(master.addons)
    make_values_quick(master.options)
