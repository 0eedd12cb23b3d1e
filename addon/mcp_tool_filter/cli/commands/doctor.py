"""``mcp-tool-filter doctor``: check everything that could go wrong, and say what to do.

With ``--client CLIENT``: find out which servers of a client ``run`` filters. With a config file
alone: all its servers, and what they show together.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.commands.http import refuse_taken_port
from mcp_tool_filter.cli.commands.look import KnownTools, ask, ask_now, rules_of
from mcp_tool_filter.cli.dead import DeadPattern, DeadPatterns, PatternHolder
from mcp_tool_filter.cli.flags import COMMAND, Given, with_flags
from mcp_tool_filter.cli.report import counted_items, estimate_tokens, hidden_by
from mcp_tool_filter.cli.settings import Settings, Sources, chosen, read_sources, target_of
from mcp_tool_filter.cli.terminal import Colour, count, paint
from mcp_tool_filter.core.errors import ConnectFailed, StartError, safe_lines
from mcp_tool_filter.core.policy.snapshot import is_about_lock, shown
from mcp_tool_filter.core.upstream.target import login_to

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.forward.run import Last, ServerOfClient


@dataclass(frozen=True, slots=True)
class Finding:
    is_well: bool
    text: str
    advice: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the finding as JSON. This format is stable: members may be added, none changes."""
        return {"ok": self.is_well, "text": self.text, "advice": self.advice or None}

    def print(self) -> None:
        mark = paint("ok  ", Colour.GREEN) if self.is_well else paint("FAIL", Colour.RED)
        print(f"{mark} {safe_lines(with_flags(self.text))}", flush=True)
        if self.advice:
            print(f"     {safe_lines(with_flags(self.advice))}", flush=True)


_ADVICE = {  # part of a reason: what to do about it
    "Command not found": "Is it installed, and in PATH? Try to run it in a terminal",
    "exited with code": "Its stderr gives the reason; try to run it in a terminal",
    "refused": "Is the upstream running, and is this its port?",
    "timeout": "Is there a firewall in between? To wait longer, use --connection-timeout and"
    " --tool-list-timeout",
    "certificate": "Trust its certificate with --ca FILE, or any certificate with --insecure",
    "credentials": "Log in with your browser: mcp-tool-filter login URL. Or send a token with"
    " --header"
    " 'Authorization: Bearer $TOKEN'; the variable must be set",
    "no MCP found": "Give the path with --endpoint PATH, or in --upstream",
    "not found:": "Is the name spelled correctly?",
    "reset": "Try http:// instead of https://, or https:// instead of http://",
    "TLS": "Does it speak plain http on this port?",
    "closed": "Try http:// instead of https://, or https:// instead of http://",
}
_ADVICE_FOR_COMMANDS = {
    "timeout": "Does it speak MCP over stdio, one message per line? To wait longer, use"
    " --connection-timeout and --tool-list-timeout",
    "closed": "Does it speak MCP over stdio?",
}


def run(typed: Given) -> int:
    """Print a line for each check; return 0 if all succeed, else 1."""
    findings = []
    client = typed.get("client", [""])[-1]
    file = None if client else _file_of_servers(typed)
    if file is not None:
        checks = examine_file(file)
    else:
        checks = examine_client(client) if client else examine(chosen(typed, os.environ))
    for finding in checks:
        findings.append(finding)
        if "json" not in typed:
            finding.print()
    all_well = all(finding.is_well for finding in findings)
    if "json" in typed:
        print(json.dumps({"ok": all_well, "checks": [one.as_json() for one in findings]}, indent=2))
    return 0 if all_well else 1


def examine(settings: Settings) -> Iterator[Finding]:
    """Run one check after the other; stop when later checks make no sense."""
    yield _versions()
    usable = _settings(settings)
    yield usable
    if not settings.is_stdio:
        address = f"{settings.host}:{settings.port}"
        yield _attempt(lambda: refuse_taken_port(settings), f"{address} is free")
    if not usable.is_well:
        return
    if login := _login(settings):
        yield login
        if not login.is_well:
            return
    yield from _upstream(settings)


def _versions() -> Finding:
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        return Finding(True, f"Python {python}, mitmproxy {version('mitmproxy')}")
    except PackageNotFoundError:
        return Finding(False, "mitmproxy is not installed", "Install mcp-tool-filter again")


def _settings(settings: Settings) -> Finding:
    """Check patterns, headers with their variables, sizes, time-outs and rules."""
    text = "The settings are valid"
    checked = _attempt(lambda: (target_of(settings), rules_of(settings)), text)
    if not checked.is_well:
        return checked
    config = settings.config()
    counts = {
        "deny pattern": len(config.choice.deny),
        "allow pattern": len(config.choice.allow),
        "exception": len(config.choice.exceptions),
        "header": len(config.upstream_headers),
    }
    more = [f"{count} {what}{'s' * (count > 1)}" for what, count in counts.items() if count]
    more += [cause.text for cause in config.choice.causes]
    return Finding(True, f"{text}: {', '.join(more)}" if more else text)


def _login(settings: Settings) -> Finding | None:
    """Check the login, and renew it if necessary; None if there is none."""
    if settings.command:
        return None
    try:
        login = login_to(target_of(settings))
        if login is None:
            return None
        if login.value() is None:
            asyncio.run(login.renewed())
    except StartError as error:
        return Finding(False, error.what, error.why)
    return Finding(True, f"Logged in to {settings.shown_upstream}")


def _attempt(check: Callable[[], object], text: str) -> Finding:
    try:
        check()
    except StartError as error:
        return Finding(False, error.what, "; ".join(filter(None, (error.why, error.hint))))
    return Finding(True, text)


def _upstream(settings: Settings) -> Iterator[Finding]:
    works = (
        f"{settings.command[0]} starts"
        if settings.command
        else f"{settings.origin} accepts connections"
    )
    try:
        known = ask_now(settings)
    except StartError as error:
        if not isinstance(error, ConnectFailed):
            yield Finding(True, works)
        known_advice = {**_ADVICE, **(_ADVICE_FOR_COMMANDS if settings.command else {})}
        advice = advice_for(error.why, known_advice)
        advice = advice.replace("login URL", f"login {settings.shown_upstream}")
        yield Finding(False, f"{error.what}: {error.why}", advice or error.hint or "")
        return
    yield Finding(True, works)
    who = known.who
    yield Finding(True, f"It speaks MCP {who.revision} over {who.transport}: {who.server}")
    dead = _dead_patterns(settings, known)
    yield from _tools(known, dead)
    yield from map(_about_dead, dead.in_list(known.snapshot))


def advice_for(reason: str, known: Mapping[str, str] = _ADVICE) -> str:
    """Return what to do about a reason.

    >>> advice_for("Connection refused")
    'Is the upstream running, and is this its port?'
    """
    found = (advice for part, advice in known.items() if part.lower() in reason.lower())
    return next(found, "")


def _dead_patterns(settings: Settings, known: KnownTools) -> DeadPatterns:
    """Return the patterns that match nothing here, nor at another server that has them."""
    mine, sources = known.snapshot, settings.sources
    holders = [PatternHolder(settings.config().patterns, mine)]
    if settings.name and sources and sources.file and mine.unmatched:
        others: list[tuple[str, Settings]] = []
        for name in sources.file.servers:
            try:
                others += [(name, sources.of_server(name, is_stdio=True))]
            except StartError:  # nothing is known about its tools
                holders.append(PatternHolder(sources.for_all_servers().config().patterns, None))
        asked = asyncio.run(_ask_all([one for one in others if one[0] != settings.name]))
        holders += [_holder(*one) for one in asked]
    return DeadPatterns(holders)


def _holder(_name: str, settings: Settings, known: KnownTools | StartError) -> PatternHolder:
    snapshot = None if isinstance(known, StartError) else known.snapshot
    return PatternHolder(settings.config().patterns, snapshot)


def _tools(known: KnownTools, dead: DeadPatterns) -> Iterator[Finding]:
    snapshot = known.snapshot
    exposed, gone = len(snapshot.allowed), len(snapshot.denied)
    saved = estimate_tokens(snapshot.denied_bytes)
    if known.who.is_shadow:
        yield Finding(True, f"{exposed + gone} tools, all exposed: {gone} would be denied")
        yield Finding(True, "Nothing is enforced: with --shadow, the filter only reports")
    else:
        yield Finding(
            True, f"{exposed + gone} tools: {exposed} exposed, {gone} denied, {saved} tokens saved"
        )
    word = "Would be hidden" if known.who.is_shadow else "Hidden"
    for hidden in hidden_by(snapshot):
        by = "," if hidden.startswith("not allowed") else " by"
        yield Finding(True, f"{word}{by} {hidden}")
    for pattern in snapshot.too_wide:
        yield Finding(True, f'Warning: the pattern "{pattern.text}" matches every tool')
    for _, said in counted_items(snapshot.catalog, is_shadow=known.who.is_shadow):
        yield Finding(True, said)
    for pattern in snapshot.unmatched:
        if dead.find(pattern) is None:
            text = f'The pattern "{pattern.text}" is for all servers, and matches at others'
            yield Finding(True, text)
    for fault in snapshot.faults:
        if is_about_lock(fault):
            yield Finding(False, f"Waits for approval: {fault}", _APPROVE)
            continue
        yield Finding(
            False, f"In the upstream's list: {fault}", "Report it to the upstream's authors"
        )
    yield from _lock(known)
    if not exposed:
        yield Finding(False, "No tool is exposed", "Deny less, or allow more")


def _about_dead(dead: DeadPattern) -> Finding:
    if not dead.is_sure:  # it may match at a server that did not answer
        return Finding(True, f"Warning: the {dead.finding}")
    advice = "Is it spelled correctly? mcp-tool-filter --list-tools shows the names"
    return Finding(False, f"The {dead.finding}", advice)


_APPROVE = "Read what it says, then approve it: mcp-tool-filter lock --approve NAME FILE"


def _lock(known: KnownTools) -> Iterator[Finding]:
    """Compare what is approved with what there is, besides the definitions."""
    snapshot = known.snapshot
    if (lock := snapshot.choice.lock) is None:
        return
    yield Finding(True, f"The lock approves {count(len(lock.tools), 'tool')}")
    if problem := lock.problem_in(known.fetched.instructions):
        advice = "mcp-tool-filter lock --check FILE shows them"
        yield Finding(False, f"Waits for approval: {problem}", advice)
    gone = [name for name in lock.tools if name not in {*snapshot.allowed, *snapshot.denied}]
    if gone:
        names = ", ".join(map(shown, gone[:_MOST_GONE]))
        more = f" and {len(gone) - _MOST_GONE} more" if len(gone) > _MOST_GONE else ""
        advice = "To remove one from the lock: mcp-tool-filter lock --approve NAME FILE"
        yield Finding(False, f"The lock has tools that are not there: {names}{more}", advice)


def _file_of_servers(typed: Given) -> Sources | None:
    """Return the settings if a file's servers are all that they name."""
    if "server" in typed:
        return None
    sources = read_sources(typed, os.environ)
    is_named = {"upstream", "upstream-cmd", COMMAND} & sources.given().keys()
    return sources if sources.file and sources.file.servers and not is_named else None


def examine_file(sources: Sources) -> Iterator[Finding]:
    """Check all servers of a file, and what they show together at ``/mcp`` and in profiles."""
    from mcp_tool_filter.rooms.merged.examine import MORE_LISTS
    from mcp_tool_filter.rooms.merged.examine import examine as examine_merged

    assert sources.file
    yield _versions()
    merging = sources.file.how_to_merge()
    asked: list[tuple[str, Settings]] = []
    for name in sources.file.servers:
        try:
            asked.append((name, sources.of_server(name, is_stdio=True)))
        except StartError as error:
            yield Finding(False, error.what, error.why)
    found = asyncio.run(_ask_all(asked, MORE_LISTS))
    known = {name: one for name, _, one in found if isinstance(one, KnownTools)}
    shared = sources.for_all_servers().config().patterns
    holders = [_holder(*one) for one in found]
    holders += [PatternHolder(shared, None)] * (len(sources.file.servers) - len(asked))
    dead = DeadPatterns(holders)
    for name, _, one in found:
        if isinstance(one, StartError):
            advice = advice_for(one.why) or one.hint or ""
            yield Finding(False, f"{name}: {one.what}: {one.why}", advice)
            continue
        own = [each for each in dead.in_list(one.snapshot) if not each.is_shared]
        for finding in (*_tools(one, dead), *map(_about_dead, own)):
            yield replace(finding, text=f"{name}: {finding.text}")
    yield from map(_about_dead, dead.shared)
    for seen in examine_merged(merging, known):
        yield Finding(not seen.advice, seen.what, seen.advice)


_MOST_GONE = 12
_HOW = "mcp-tool-filter run -- {program} lists at the end the servers that it has seen"


def examine_client(client: str) -> Iterator[Finding]:
    """Check each server in the client's files against what the last ``run`` has seen."""
    from mcp_tool_filter.rooms.clients.files import Whereabouts
    from mcp_tool_filter.rooms.forward.run import last_of, servers_of

    servers, problems = servers_of(client, (), Whereabouts.of_this_process())
    for problem in problems:
        yield Finding(False, problem)
    program = _program_of(client)
    if program:
        yield Finding(True, f"{client} is started with {program}")
    if not servers:
        yield Finding(False, f"No servers in the files of {client}", "mcp-tool-filter clients")
    last = last_of(client)
    for server in servers:
        yield _finding(server, client, last, _HOW.format(program=program or client))
    yield from _refused_tools(client)


def _refused_tools(client: str) -> Iterator[Finding]:
    """Name the tools that the client refuses, cuts or loses, and the edits that heal them."""
    from mcp_tool_filter.core.messages.tools import Definition
    from mcp_tool_filter.rooms.clients import entries
    from mcp_tool_filter.rooms.clients.filtering import settings_of
    from mcp_tool_filter.rooms.clients.listed import find_servers
    from mcp_tool_filter.rooms.edits.healing import problems_for

    asked: list[tuple[str, Settings]] = []
    for listed in find_servers(client):
        if listed.place.scope == "project":  # it may come from anybody
            continue
        try:
            flags = entries.flags_of(listed.entry)
            wrapped = entries.wrap(listed.original(), flags, ["mcp-tool-filter"])
            asked.append((listed.name, settings_of(wrapped, _PATIENCE)))
        except StartError:
            continue  # status says what is wrong with it
    for name, settings, known in asyncio.run(_ask_all(asked)):
        if isinstance(known, StartError):
            continue
        editor = settings.config().editor
        tools = [
            Definition(editor.exposed(own) if editor else own, None, raw)
            for own, raw in known.snapshot.allowed.items()
        ]
        for problem in problems_for(client, name, tools):
            advice = f"To heal it, write into the config file:\n{problem.edit}"
            yield Finding(False, f"{name}: {shown(problem.tool)}: {problem.what}", advice)


async def _ask_all(
    servers: Sequence[tuple[str, Settings]], more: Sequence[str] = ()
) -> list[tuple[str, Settings, KnownTools | StartError]]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str, settings: Settings) -> tuple[str, Settings, KnownTools | StartError]:
        async with gate:
            try:
                return name, settings, await ask(settings, is_quiet=True, more=more)
            except StartError as error:
                return name, settings, error

    return await asyncio.gather(*(one(*server) for server in servers))


_AT_ONCE = 8  # servers that are asked at the same time
_PATIENCE = "10000"  # milliseconds for a server to answer


def _program_of(client: str) -> str | None:
    from mcp_tool_filter.rooms.forward.run import PROGRAMS

    names = [name for name, one in PROGRAMS.items() if one == client]
    return next(filter(shutil.which, names), None)


def _finding(server: ServerOfClient, client: str, last: Last | None, how: str) -> Finding:
    from mcp_tool_filter.rooms.forward.run import Way

    name = shown(server.name)
    if server.way is Way.FILTERED:
        return Finding(True, f"{name} is filtered{server.filtering.reason}")
    if server.way is Way.WATCHED:
        advice = "Take --shadow away to enforce its policy"
        return Finding(True, f"{name} is only watched{server.filtering.reason}", advice)
    if server.way is Way.COMMAND:
        advice = f"mcp-tool-filter wrap {client} {name} --deny PATTERN"
        return Finding(False, f"{name} is a command, which run does not filter", advice)
    if not server.has_flag:
        advice = "Add --enable-proxy to its args"
        return Finding(False, f"{name}: mcp-remote does not use the proxy of run", advice)
    if last is None:
        return Finding(True, f"{name} ({server.url}) has a URL, so run can filter it", how)
    when = datetime.fromtimestamp(last.ended, UTC).strftime("%Y-%m-%d %H:%M UTC")
    if server.name in last.seen:
        return Finding(True, f"{name} ({server.url}) came through the filter in the run of {when}")
    for missed, url, why in last.missing:
        if (missed, url) == (server.name, server.url):
            text = f"{name} ({url}) did not come through the filter in the run of {when}"
            return Finding(False, text, why[:1].upper() + why[1:])
    return Finding(True, f"{name} ({server.url}) has a URL, and is newer than the last run", how)
