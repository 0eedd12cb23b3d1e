"""``mcp-tool-filter -- CMD``: run the filter in front of a command, over stdio.

We import neither mitmproxy nor asyncio. The command starts as soon as the settings are checked; we
import the rest while it starts.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.stdio.child import Child, end_child
from mcp_tool_filter.cli.session_output import StdioSession, run_session, say_beside_client
from mcp_tool_filter.cli.settings import Settings
from mcp_tool_filter.errors import StartError

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.stdio.relay import Happened
    from mcp_tool_filter.policy.snapshot import Snapshot

_STRICT_EOF = 0.5  # seconds for the command to end by itself when --strict ends the session


def run(settings: Settings) -> int:
    """Relay until one side ends. Raises StartError."""
    run_session(settings, partial(_relay, settings))


def _relay(settings: Settings, session: StdioSession) -> int:
    gc.disable()  # all imported objects stay; collecting again and again would only take time
    happened: SimpleQueue[Happened] = SimpleQueue()
    _collect_signals(happened)
    rules = session.read_rules(lambda text: relay.tell_command(text))
    child = Child(settings.command, env=settings.env, cwd=settings.cwd)

    from mcp_tool_filter.adapters.stdio.relay import Relay, RelayedLines
    from mcp_tool_filter.observers.sentences import Introduction
    from mcp_tool_filter.policy.config import refuse_unmatched

    upstream = settings.shown_upstream  # now, while the command starts
    deciding = link = None
    if rules:
        from mcp_tool_filter.adapters.rules.state import credentials_of_command
        from mcp_tool_filter.adapters.stdio.waiting import DecidingThread

        operator = credentials_of_command(settings.env, settings.cwd)
        deciding = DecidingThread(rules)
        link = rules.link(settings.upstream, lambda: operator)

    def report(snapshot: Snapshot) -> None:
        """Report the tools, now that the client is about to see the complete list."""
        try:
            refuse_unmatched(session.config, snapshot.unmatched)
        except StartError as error:  # before anything is answered
            say_beside_client(str(error))
            end_child(child, eof=_STRICT_EOF)
            session.end()
            sys.stderr.close()
            os._exit(1)
        who = Introduction(
            upstream=upstream,
            server=judge.server.name or "unnamed",
            transport="stdio",
            revision=judge.server.revision,
            listens_at="stdio",
        )
        session.report(who, snapshot, rules)

    session.begin_log()
    judge = session.judge(report, link)
    session.warn()  # now, because the report comes only with the first list
    gc.freeze()
    gc.enable()
    lines = RelayedLines(
        child,
        judge,
        happened,
        say=say_beside_client,
        limits=session.config.limits,
        stdout=session.stdout,
        deciding=deciding,
    )
    relay = Relay(lines, stdin=session.stdin)
    status = relay.run()
    if deciding:
        deciding.close()
    return status


def _collect_signals(happened: SimpleQueue[Happened]) -> None:
    """Queue signals to pass them on. Signals that are ignored in this process stay ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: happened.put(number))
