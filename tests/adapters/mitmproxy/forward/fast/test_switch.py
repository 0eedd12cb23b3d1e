"""Nothing of mitmproxy is replaced before the switch is on, and one switch replaces all."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio
from mitmproxy.http import Headers
from mitmproxy.master import Master
from mitmproxy.options import Options
from mcp_tool_filter.adapters.mitmproxy.forward import addon
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import installed

FAST = "mcp_tool_filter.adapters.mitmproxy.forward.fast"

def seen(master):
    return [
        Headers.get.__module__.startswith(FAST),
        type(master.addons).__module__.startswith(FAST),
        installed.http_layer is not None,
    ]

async def main():
    master = Master(Options())
    print(*seen(master))
    from mcp_tool_filter.adapters.mitmproxy.forward.fast.switch import speed_up
    print(*seen(master))
    speed_up(master)
    print(*seen(master))

asyncio.run(main())
"""


def test_one_switch_turns_every_shortcut_on() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    before, imported, after = ended.stdout.splitlines() or [ended.stderr, "", ""]
    assert before == "False False False"
    assert imported == "False False False"
    assert after == "True True True"
