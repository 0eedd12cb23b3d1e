"""What ``--help`` says: the commands, the flags with their defaults, examples, exit statuses."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from mcp_tool_filter.cli.settings.flags import GROUPS, Flag

_TOP = """\
mcp-tool-filter stands before an MCP server and takes away the tools you do not want:
your model does not see them, cannot call them, pays no token for them.

usage: mcp-tool-filter [--deny PATTERN] [FLAGS] -- COMMAND ARGS
       mcp-tool-filter --upstream URL [--deny PATTERN] [FLAGS]
       mcp-tool-filter COMMAND

Examples:
  mcp-tool-filter --deny '^delete_' -- npx -y @modelcontextprotocol/server-filesystem ~/work
  mcp-tool-filter --upstream http://localhost:3000/mcp --deny '^file_.*$,.*_database$'
  mcp-tool-filter -u https://example.com/mcp -H 'Authorization: Bearer $TOKEN' --allow '^read_'
  mcp-tool-filter -u http://localhost:3000/mcp --list-tools      what is there, what would go
  mcp-tool-filter -u http://localhost:3000/mcp --inspect         the same under mitmweb
  mcp-tool-filter config claude-code -u http://localhost:3000/mcp -d '^file_'

Commands:
  demo             see it at work, without an MCP server of your own
  doctor           check upstream, patterns and port, and say what to do
  config CLIENT    print what a client needs: claude-code, claude-desktop, cursor,
                   vscode, codex, gemini
  login URL        log in to an MCP server with your browser; --list shows the logins
  logout URL       end a login
  check-pattern    say whether patterns may be used to deny or allow tools
  replay           say what a policy would have done to a recorded session
  scrub            take the secrets out of a recording
  addon-path       print the path of the addon script, for mitmdump -s
  completion SHELL print a completion script: bash, zsh or fish
"""
_BOTTOM = """\
Patterns are JavaScript regexes, searched for anywhere in a name: ^ and $ tie them to its ends.
A comma within {}, [] or (), or after a backslash, does not separate.

Each flag can also stand in the environment, as MCP_TOOL_FILTER_DENY (lines separate several),
or in a file given with --config, as deny = ["^file_"]. A flag beats the environment, which
beats the file; only deny adds up over all three.

Exit status: 0 after Ctrl+C or SIGTERM, or when all is done; 1 if the start failed, the upstream
was lost, or a check failed; 2 if the command line cannot be followed.
"""
_COLUMN = 34
_WIDTH = 96


def render_help() -> str:
    """Write the whole page."""
    return "\n".join([_TOP, *_flag_lines(), _BOTTOM])


def _flag_lines() -> Iterator[str]:
    for title, flags in GROUPS.items():
        yield f"{title}:"
        for flag in flags:
            yield _flag_line(flag)
        yield ""


def _flag_line(flag: Flag) -> str:
    short = f"-{flag.short}, " if flag.short else "    "
    left = f"  {short}--{flag.name} {flag.value}".rstrip()
    if len(left) + 2 > _COLUMN:
        left += "\n" + " " * _COLUMN
    right = textwrap.wrap(flag.help, _WIDTH - _COLUMN)
    return left.ljust(_COLUMN) + ("\n" + " " * _COLUMN).join(right)
