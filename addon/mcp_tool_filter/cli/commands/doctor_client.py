"""``mcp-tool-filter doctor --client CLIENT``: find out which servers of a client ``run``
filters."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime

from mcp_tool_filter.adapters.client_files.places import Surroundings
from mcp_tool_filter.adapters.run.expected import PROGRAMS, Server, Way, servers_of
from mcp_tool_filter.adapters.run.last import Last, last_of
from mcp_tool_filter.cli.output.finding import Finding
from mcp_tool_filter.policy.snapshot import shown

_HOW = "mcp-tool-filter run -- {program} lists at the end the servers that it has seen"


def examine_client(client: str) -> Iterator[Finding]:
    """Check each server in the client's files against what the last ``run`` has seen."""
    servers, problems = servers_of(client, (), Surroundings.of_this_process())
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


def _program_of(client: str) -> str | None:
    names = [name for name, one in PROGRAMS.items() if one == client]
    return next(filter(shutil.which, names), None)


def _finding(server: Server, client: str, last: Last | None, how: str) -> Finding:
    name = shown(server.name)
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
