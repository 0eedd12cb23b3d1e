"""``mcp-tool-filter --stdio --upstream URL``: a URL for clients that only start commands."""

from __future__ import annotations

import asyncio
from asyncio import CancelledError

from mcp_tool_filter.cli.commands.look import KnownTools, ask
from mcp_tool_filter.cli.settings import Settings, target_of
from mcp_tool_filter.cli.terminal import cancel_on_signals, on_signals
from mcp_tool_filter.core.errors import ConnectFailed
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.messages.limits import Transport
from mcp_tool_filter.core.process.start import refuse_start
from mcp_tool_filter.core.sockets.connect import HttpFailed, Reach, probe
from mcp_tool_filter.core.upstream.target import login_to, open_client
from mcp_tool_filter.rooms.stdio.command import StdioSession, run_session, say_beside_client
from mcp_tool_filter.rooms.stdio.pipe import LegacyUpstream, Pipe, StreamableUpstream


def run(settings: Settings) -> int:
    """Pass messages until one side ends. Raises StartError."""
    target_of(settings)  # report wrong settings before a file is opened
    run_session(settings, lambda session: asyncio.run(_serve(settings, session)))


async def _serve(settings: Settings, session: StdioSession) -> int:
    cancel_on_signals(hangup=True)
    session.begin_log()
    try:
        known = await ask(settings)
    except CancelledError:
        return 0
    refuse_start(session.config, [known.snapshot])
    pipe = _pipe(settings, session, known)

    def leave() -> None:
        session.is_ready = False
        pipe.end()

    on_signals(asyncio.get_running_loop(), leave, hangup=True)
    session.is_ready = True
    try:
        return await pipe.run()
    except HttpFailed as error:
        raise ConnectFailed(target_of(settings).url, why=str(error)) from None
    finally:
        if pipe.effects.room_host:
            await pipe.effects.room_host.close()


def _pipe(settings: Settings, session: StdioSession, known: KnownTools) -> Pipe:
    config, target = session.config, target_of(settings)
    origin, login = parse_origin(target.url), login_to(target)
    link = None
    rules = session.read_rules(lambda text: pipe.send_copy(text))
    if rules:
        link = rules.link_to_url(target.url + known.fetched.endpoint, target.headers, login)
    session.report(known.who, known.snapshot, rules)
    session.warn()

    async def is_there() -> bool:
        reach = await probe(origin, target.tls, config.connection_timeout)
        return reach is not Reach.LOST

    judge = session.judge(
        lambda snapshot: pipe.learn_tools(snapshot),
        link,
        known.snapshot.faults,
        has_login=login is not None,
    )
    judge.restores_ids = True
    pipe = Pipe(
        judge,
        is_there=is_there,
        say=say_beside_client,
        limits=config.limits,
        keeps_running=not config.fail_fast,
        stdin=session.stdin,
        stdout=session.stdout,
    )
    if rules:
        pipe.effects.room_host = rules.host
        pipe.in_background(rules.watch())
    loop = asyncio.get_running_loop()

    def tell(lines: list[bytes]) -> None:
        asyncio.run_coroutine_threadsafe(pipe.tell_client(lines), loop)

    session.shape.tell_client = tell
    pipe.learn_tools(known.snapshot)
    session.shape.know(known.snapshot)
    http = open_client(target, login)
    http.resends = False
    is_legacy = known.fetched.transport is Transport.LEGACY_SSE
    kind = LegacyUpstream if is_legacy else StreamableUpstream
    pipe.upstream = kind(http, known.fetched.endpoint, pipe, config.limits)
    return pipe
