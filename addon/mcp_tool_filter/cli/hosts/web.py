"""``--inspect``: run mitmweb with our addon."""

from __future__ import annotations

import socket

from mitmproxy.hooks import ConfigureHook
from mitmproxy.options import Options
from mitmproxy.tools.web.master import WebMaster

from mcp_tool_filter.adapters.mitmproxy.options import was_set
from mcp_tool_filter.cli.terminal import say
from mcp_tool_filter.errors import StartError


def make_options() -> Options:
    return Options()


def make_master(options: Options, addon: object) -> WebMaster:
    """Return mitmweb's master, our addon before all others. Raises OptionsError."""
    master = WebMaster(options, with_termlog=False)
    if not was_set(options, "web_port"):
        options.update(web_port=_port_near(options.web_port))
    elif not _is_free(options.web_port, options.web_host):
        what = f"Cannot show mitmweb at {options.web_host}:{options.web_port}"
        raise StartError(what, why="Address already in use; leave web_port out to use a free port")
    manager = master.addons
    manager.chain.insert(0, manager.register(addon))
    manager.invoke_addon_sync(addon, ConfigureHook(set(options.keys())))
    manager.add(_WebAddress(master))
    return master


class _WebAddress:
    """Prints mitmweb's address, in case no browser opens."""

    def __init__(self, master: WebMaster) -> None:
        self._master = master

    def running(self) -> None:
        say(f"mitmweb: {self._master.web_url}")


def _port_near(port: int) -> int:
    """Return the usual port, or the next free one."""
    for candidate in range(port, port + 100):
        if _is_free(candidate, "127.0.0.1"):
            return candidate
    return port


def _is_free(port: int, host: str) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError:
            return False
    return True
