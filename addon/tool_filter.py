"""What ``mitmdump -s`` loads: creates the addon, nothing else.

    mitmdump -s addon/tool_filter.py --mode reverse:http://localhost:3000 --set deny='^file_.*$'

mitmproxy goes on without a script that it cannot load, or not load again when the file is touched,
and says nothing when an option of the script cannot be read. A proxy without its filter must not
be: so the addon is registered beside the script, not in it, and whatever is in the way of that
ends the process. (This file is read by any mitmproxy; the package asks for a recent one.)
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from mitmproxy import ctx, hooks, version

_tasks: list[asyncio.Future[None]] = []


def _import_addon() -> Any:
    from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter

    return ToolFilter


# Now: while it reads this file, and only then, mitmproxy finds what lies beside it.
_ToolFilter: Any = None
_problem: Exception | None = None
if __name__.startswith("__mitmproxy_script__"):  # and not the launcher, which only asks us
    try:
        _ToolFilter = _import_addon()
    except Exception as error:
        _problem = error


def load(_loader: object) -> None:
    if "toolfilter" in ctx.master.addons.lookup:
        return  # the file was touched, or is given twice: the one that runs stays
    try:
        if _problem:
            raise _problem
        _register(_ToolFilter(argv=sys.argv))
    except Exception as error:
        _stop(_reason(error))


def _register(addon: object) -> None:
    manager = ctx.master.addons
    scripts = manager.get("scriptloader")
    manager.register(addon)
    # Before all others: mitmproxy's servers close on an edit that we are still to refuse.
    manager.chain.insert(0, addon)
    manager.invoke_addon_sync(addon, hooks.ConfigureHook(set(ctx.options.keys())))
    if problem := getattr(addon, "problem", None):
        raise problem  # now: a moment later mitmproxy listens, and to every address
    if scripts.is_running:  # somebody has added the script in mitmweb
        _tasks.append(asyncio.ensure_future(manager.invoke_addon(addon, hooks.RunningHook())))


def _reason(error: Exception) -> str:
    """Two lines: what is wrong; why, or what would be right."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _what_to_install(error.name.partition(".")[0])
    text = str(error) or type(error).__name__
    if text.startswith("Error: "):
        return text
    what = f"Error: The tool filter cannot start in mitmproxy {version.VERSION}"
    return what + "\n" + " ".join(text.split())


def _what_to_install(module: str) -> str:
    if getattr(sys, "frozen", False):
        why = "mitmproxy's standalone program cannot load it. Install mitmproxy with pipx or pip"
    elif module == "mcp_tool_filter":
        why = "Leave tool_filter.py in its folder, or install our package: pip install ."
    else:
        why = (
            f"Install it beside mitmproxy: pipx inject mitmproxy {module}, or pip install {module}"
        )
    return f"Error: The tool filter needs {module}\n{why}"


def _stop(reason: str) -> None:
    sys.stderr.write(reason + "\n")
    sys.stderr.flush()
    sys.exit(1)
