"""``mcp-tool-filter --stdio --upstream URL``: a URL for clients that only start commands."""

from __future__ import annotations

import asyncio
import os
import time
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.sockets.client import HttpClient
from mcp_tool_filter.adapters.sockets.connect import HttpFailed, Reach, probe
from mcp_tool_filter.adapters.stdio.http_upstream import LegacyUpstream, StreamableUpstream
from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.adapters.stdio.pipe import Pipe
from mcp_tool_filter.adapters.upstream.target import Target, login_to
from mcp_tool_filter.cli.commands.look import KnownTools, ask
from mcp_tool_filter.cli.session_output import (
    SessionWatch,
    open_recorder,
    patient_stderr,
    say_beside_client,
    take_over_stdio,
    watch_session,
    write_beside_client,
)
from mcp_tool_filter.cli.settings import Settings, target_of
from mcp_tool_filter.cli.terminal import log_to_stderr, on_signals
from mcp_tool_filter.conversation.policy_in_force import Judged
from mcp_tool_filter.errors import ConnectFailed
from mcp_tool_filter.http.urls import parse_origin
from mcp_tool_filter.observers.sentences import (
    VerdictLog,
    only_warnings,
    render_report,
    warnings_about,
)
from mcp_tool_filter.policy.config import refuse_unmatched
from mcp_tool_filter.protocol.limits import Transport

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.recordings.line_recorder import LineRecorder
    from mcp_tool_filter.adapters.rules.file import RulesInForce


def run(settings: Settings) -> int:
    """Pass messages until one side ends. Raises StartError."""
    stdin, stdout = take_over_stdio()
    with patient_stderr():
        status = _run(settings, stdin, stdout)
    os._exit(status)  # not sys.exit: a thread still waits for the client's input


def _run(settings: Settings, stdin: int, stdout: int) -> int:
    target = target_of(settings)
    recorder = open_recorder(settings.record) if settings.record else None
    log_to_stderr(settings.verbosity, as_json=settings.log_format == "json")
    watch = watch_session(settings, write_beside_client)
    status = asyncio.run(_serve(settings, target, (stdin, stdout), recorder, watch))
    watch.end()
    if recorder:
        recorder.end()
    return status


async def _serve(
    settings: Settings,
    target: Target,
    client: tuple[int, int],
    recorder: LineRecorder | None,
    watch: SessionWatch,
) -> int:
    us = asyncio.current_task()
    assert us
    on_signals(asyncio.get_running_loop(), us.cancel, hangup=True)
    try:
        known = await ask(settings)
    except CancelledError:
        return 0
    _report(settings, known)
    pipe = _pipe(settings, target, client, known, recorder, watch)
    on_signals(asyncio.get_running_loop(), pipe.end, hangup=True)
    try:
        return await pipe.run()
    except HttpFailed as error:
        raise ConnectFailed(target.url, why=str(error)) from None
    finally:
        if pipe.effects.rule_host:
            await pipe.effects.rule_host.close()


def _pipe(
    settings: Settings,
    target: Target,
    client: tuple[int, int],
    known: KnownTools,
    recorder: LineRecorder | None,
    watch: SessionWatch,
) -> Pipe:
    config = settings.config()
    origin = parse_origin(target.url)
    log = VerdictLog(say_beside_client)
    log.know(known.snapshot.faults)
    login = login_to(target)
    rules = _read_rules(config.rules, lambda text: pipe.send_copy(text))
    if rules:
        from mcp_tool_filter.adapters.rules.state import credentials_we_add

        operator = partial(credentials_we_add, target.headers, login)
        links = (rules.link(target.url + known.fetched.endpoint, operator),)

    def observe(judged: Judged) -> None:
        log.tell(judged.verdict)
        watch.observe(judged)

    judge = LineJudge(
        config,
        observe=observe,
        on_listed=lambda snapshot: pipe.learn_tools(snapshot),
        links=links if rules else (),
        now=time.monotonic(),
        recorder=recorder,
        propagate=watch.propagate,
        restores_ids=True,
    )

    async def is_there() -> bool:
        reach = await probe(origin, target.tls, config.connection_timeout)
        return reach is not Reach.LOST

    pipe = Pipe(
        judge,
        is_there=is_there,
        say=say_beside_client,
        limits=config.limits,
        keeps_running=not config.fail_fast,
        stdin=client[0],
        stdout=client[1],
    )
    if rules:
        rules.host.enter_log = watch.enter_log
        pipe.effects.rule_host = rules.host
        pipe.in_background(rules.watch())
    pipe.learn_tools(known.snapshot)
    headers = [(name.encode(), value.encode()) for name, value in target.headers]
    http = HttpClient(origin, headers=headers, tls=target.tls, resends=False, login=login)
    is_legacy = known.fetched.transport is Transport.LEGACY_SSE
    kind = LegacyUpstream if is_legacy else StreamableUpstream
    pipe.upstream = kind(http, known.fetched.endpoint, pipe, config.limits)
    return pipe


def _read_rules(path: str, send_copy: Callable[[bytes], None]) -> RulesInForce | None:
    """Read the rules file, if there is one. Raises StartError."""
    if not path:
        return None
    from mcp_tool_filter.adapters.rules.file import RulesInForce
    from mcp_tool_filter.adapters.rules.host import Copies

    copies = Copies(lambda text, _effect: send_copy(text))
    return RulesInForce(path, copies.send, copies=copies.id_prefix)


def _report(settings: Settings, known: KnownTools) -> None:
    refuse_unmatched(settings.config(), known.snapshot.unmatched)
    report = render_report(known.who, known.snapshot)
    said = [only_warnings(report) if settings.is_quiet else report]
    for text in filter(None, [*said, *warnings_about(settings.config())]):
        say_beside_client(text)
