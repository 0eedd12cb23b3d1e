"""``mcp-tool-filter -- CMD``: run the filter in front of a command, over stdio.

We import neither mitmproxy nor asyncio. The command starts as soon as the settings are checked; we
import the rest while it starts.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.stdio.child import Child, end_child
from mcp_tool_filter.cli.session_output import (
    open_recorder,
    patient_stderr,
    say_beside_client,
    take_over_stdio,
    watch_session,
    write_beside_client,
)
from mcp_tool_filter.cli.settings import Settings
from mcp_tool_filter.errors import StartError

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.stdio.judge import LineJudge
    from mcp_tool_filter.adapters.stdio.relay import Happened
    from mcp_tool_filter.adapters.stdio.rule_thread import RuleThread
    from mcp_tool_filter.conversation.judged import Judged
    from mcp_tool_filter.policy.snapshot import Snapshot

_STRICT_EOF = 0.5  # seconds for the command to end by itself when --strict ends the session


def run(settings: Settings) -> int:
    """Relay until one side ends. Raises StartError."""
    stdin, stdout = take_over_stdio()
    with patient_stderr():
        status = _relay(settings, stdin, stdout)
    os._exit(status)  # not sys.exit: a thread still waits for the client's input


def _relay(settings: Settings, stdin: int, stdout: int) -> int:
    gc.disable()  # all imported objects stay; collecting again and again would only take time
    config = settings.config()
    recorder = open_recorder(settings.record) if settings.record else None
    watch = watch_session(settings, write_beside_client)
    happened: SimpleQueue[Happened] = SimpleQueue()
    _collect_signals(happened)
    rules = _read_rules(config.rules, settings, lambda text: relay.tell_command(text))
    if rules:
        rules.rules.host.enter_log = watch.enter_log
    child = Child(settings.command, env=settings.env, cwd=settings.cwd)

    from mcp_tool_filter.adapters.stdio.judge import LineJudge
    from mcp_tool_filter.adapters.stdio.relay import Relay
    from mcp_tool_filter.cli.terminal import log_to_stderr
    from mcp_tool_filter.observers.sentences import VerdictLog, warnings_about
    from mcp_tool_filter.policy.config import refuse_unmatched

    log_to_stderr(settings.verbosity, as_json=settings.log_format == "json")
    log = VerdictLog(say_beside_client)

    def observe(judged: Judged) -> None:
        log.tell(judged.verdict)
        watch.observe(judged)

    upstream = settings.shown_upstream  # now, while the command starts

    def stop_watching() -> None:
        watch.end()
        if recorder:
            recorder.end()

    def report(snapshot: Snapshot) -> None:
        try:
            refuse_unmatched(config, snapshot.unmatched)
        except StartError as error:  # before anything is answered
            say_beside_client(str(error))
            end_child(child, eof=_STRICT_EOF)
            stop_watching()
            sys.stderr.close()
            os._exit(1)
        _report(settings, upstream, judge, snapshot, rules)
        log.know(snapshot.faults)

    judge = LineJudge(
        config,
        observe=observe,
        on_listed=report,
        links=(rules.link,) if rules else (),
        now=time.monotonic(),
        recorder=recorder,
        propagate=watch.propagate,
    )
    for warning in warnings_about(config):  # now, because the report comes only with the first list
        say_beside_client(warning)
    gc.freeze()
    gc.enable()
    relay = Relay(
        child,
        judge,
        happened,
        say=say_beside_client,
        limits=config.limits,
        stdin=stdin,
        stdout=stdout,
        rules=rules,
    )
    status = relay.run()
    if rules:
        rules.close()
    stop_watching()
    return status


def _read_rules(
    path: str, settings: Settings, send_copy: Callable[[bytes], object]
) -> RuleThread | None:
    """Read the rules file, if there is one. Raises StartError."""
    if not path:
        return None
    from mcp_tool_filter.adapters.rules.state import credentials_of_command
    from mcp_tool_filter.adapters.stdio.rule_thread import RuleThread

    operator = credentials_of_command(settings.env, settings.cwd)
    return RuleThread(path, settings.upstream, send_copy, operator)


def _collect_signals(happened: SimpleQueue[Happened]) -> None:
    """Queue signals to pass them on. Signals that are ignored in this process stay ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: happened.put(number))


def _report(
    settings: Settings,
    upstream: str,
    judge: LineJudge,
    snapshot: Snapshot,
    rules: RuleThread | None,
) -> None:
    """Report the exposed and hidden tools, now that the client has seen the complete list."""
    from mcp_tool_filter.observers.sentences import Introduction, only_warnings, render_report

    who = Introduction(
        upstream=upstream,
        server=judge.server.name or "unnamed",
        transport="stdio",
        revision=judge.server.revision,
        listens_at="stdio",
    )
    report = render_report(who, snapshot, rules.rules.names if rules else ())
    if said := only_warnings(report) if settings.is_quiet else report:
        say_beside_client(said)
