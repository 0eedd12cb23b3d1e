"""Run the HTTP proxy in mitmproxy, for ``--inspect``, ``--record``, ``--set`` and ``run``.

The upstream's tools are fetched while mitmproxy is still being imported.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import CancelledError
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.commands.http import (
    Fetch,
    Report,
    activity_for,
    at_second_call,
    fetch_with_progress,
    in_front_of_command,
    open_bridge,
    refuse_taken_port,
    report_for,
    savings_for,
    say_summary,
)
from mcp_tool_filter.cli.flags import UsageError, no_such
from mcp_tool_filter.cli.settings import Settings, target_of
from mcp_tool_filter.cli.terminal import cancel_on_signals, on_signals, say
from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import Mistake
from mcp_tool_filter.core.process.background import in_background
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.core.upstream.target import Target

if TYPE_CHECKING:
    from mitmproxy.master import Master

    from mcp_tool_filter.rooms.audit.activity import Activity


# The slowest imports, in slices of similar duration.
_SLICES = (
    "pyparsing",
    "cryptography.x509",
    "OpenSSL.SSL",
    "mitmproxy.connection",
    "mitmproxy.http",
    "aioquic.tls",
    "aioquic.quic.connection",
    "mitmproxy.proxy.layers.http",
    "mitmproxy.master",
    "mcp_tool_filter.rooms.mitmproxy.addon",
    "mcp_tool_filter.rooms.mitmproxy.masters",
)
_ADDONS = "mitmproxy.addons"
_TURNS = 3  # of the event loop: enough to read, parse and answer


async def serve(settings: Settings) -> int:
    """Filter until a signal comes or the upstream is lost; return the exit status."""
    refuse_taken_port(settings)
    _refuse_missing_folder(settings.record)
    if settings.record:
        os.umask(0o077)  # a recording contains credentials
    loop = asyncio.get_running_loop()
    cancel_on_signals()
    try:
        async with AsyncExitStack() as opened:
            report, activity = report_for(settings), activity_for(settings, loop)
            if settings.command:
                command = await opened.enter_async_context(open_bridge(settings, say))
                in_front = in_front_of_command(settings)
                master = await prepare(in_front, report, activity, command.fetch)
                proxy = master.addons.get("toolfilter").proxy
                command.attach_to(proxy)
            else:
                master = await prepare(settings, report, activity)
            clean = lambda: in_background(leave(master))  # noqa: E731
            on_signals(loop, at_second_call(clean, master.addons.get("toolfilter").hurry))
            await master.run()
    except CancelledError:
        pass
    return 0


async def leave(master: Master) -> None:
    """End cleanly, because asyncio would log connections that it has to abort."""
    from mcp_tool_filter.rooms.mitmproxy.connections import hang_up

    await master.addons.get("toolfilter").drain()
    await hang_up()
    master.shutdown()


async def prepare(
    settings: Settings,
    report: Report,
    activity: Activity | None = None,
    ask: Fetch | None = None,
) -> Master:
    """Fetch the tools and import mitmproxy meanwhile; return a master that is ready to run.

    ``ask`` fetches the tools if the upstream is no URL.
    """
    if ask is None:  # only mitmproxy understands what --set means for TLS and addresses
        ask = fetch if settings.set else EarlyFetch(target_of(settings))
    await import_mitmproxy(settings)
    return make_master(settings, ask, report, activity)


class EarlyFetch:
    """A fetch that starts before the proxy exists."""

    def __init__(self, target: Target) -> None:
        self._target = target
        task = asyncio.create_task(fetch_with_progress(target))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._task: asyncio.Task[Fetched] | None = task

    async def __call__(self, target: Target) -> Fetched:
        """Return its result once; fetch again for another target or a second time."""
        task, self._task = self._task, None
        if task and replace(target, tls=None) == replace(self._target, tls=None):
            return await task
        return await fetch(target)


def keep_addons_apart() -> None:
    """Let single addons be imported without all others: replace mitmproxy's package of addons,
    whose ``__init__`` imports every one, by an empty one. Call this before importing mitmproxy."""
    found = find_spec("mitmproxy")
    if _ADDONS in sys.modules or found is None or found.origin is None:
        return
    package = ModuleType(_ADDONS)
    package.__path__ = [str(Path(found.origin).parent / "addons")]
    sys.modules[_ADDONS] = package


async def import_mitmproxy(settings: Settings) -> None:
    """Import mitmproxy in slices, so that the fetch can continue in between."""
    if not settings.inspect:
        keep_addons_apart()
    for name in _SLICES:
        import_module(name)
        for _ in range(_TURNS):
            await asyncio.sleep(0)


def make_master(
    settings: Settings,
    asked: Fetch,
    report: Report,
    activity: Activity | None,
    given: Mapping[str, object] | None = None,
) -> Master:
    """Return a master; ``given`` are mitmproxy's options if it is not a reverse proxy."""
    from mitmproxy.exceptions import OptionsError
    from mitmproxy.options import Options

    from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
    from mcp_tool_filter.rooms.mitmproxy.masters import LeanMaster, make_web_master
    from mcp_tool_filter.rooms.mitmproxy.options import ConfigReader

    options = Options()
    try:
        options.update_defer(**(given or mitmproxy_options(settings)))
        options.set(*settings.set, defer=True)
        reader = ConfigReader(settings.texts, settings.config())
        addon = ToolFilter(
            fetch=asked,
            report=report,
            warn=say,
            config_reader=reader,
            needs_hosts=given is None,
            sinks=[activity.show] if activity else [],
            on_end=partial(say_summary, activity),
            savings=partial(savings_for, settings),
        )
        master = (
            make_web_master(options, addon, say) if settings.inspect else LeanMaster(options, addon)
        )
    except OptionsError as error:
        raise UsageError(str(error)) from None
    if options.deferred:
        raise no_such("option", next(iter(options.deferred)), dict(options.items()))
    return master


def mitmproxy_options(settings: Settings) -> dict[str, object]:
    """Return the settings as mitmproxy's options; unset ones keep their default."""
    given: dict[str, object] = {
        **_own_options(settings),
        "mode": [f"reverse:{settings.origin}"],
        "listen_host": settings.host,
        "listen_port": settings.port,
        "connection_strategy": "lazy",
        "ssl_insecure": settings.insecure,
        "ssl_verify_upstream_trusted_ca": settings.ca,
        "client_certs": settings.client_cert,
        "certs": [settings.cert] if settings.cert else None,
        "save_stream_file": settings.record,
        "store_streamed_bodies": True if settings.record or settings.inspect else None,
        "web_open_browser": settings.browser if settings.inspect else None,
    }
    return {name: value for name, value in given.items() if value is not None}


def _own_options(settings: Settings) -> dict[str, tuple[str, ...]]:
    """Return our own options in mitmproxy's form: lists of texts."""
    given = {name: text for name, text in settings.texts.items() if text is not None}
    return {name: (text,) if isinstance(text, str) else tuple(text) for name, text in given.items()}


def _refuse_missing_folder(record: str | None) -> None:
    """Refuse a recording in a missing folder: mitmproxy would create the folder."""
    if record is None:
        return
    folder = Path(record.removeprefix("+")).expanduser().parent  # a plus makes mitmproxy append
    if not folder.is_dir():
        raise Mistake(f"Cannot write the recording {record}", why=f"There is no folder {folder}")
