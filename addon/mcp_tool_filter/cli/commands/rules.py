"""``mcp-tool-filter rules``: check a rules file, test it, and explain its decisions."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mcp_tool_filter.adapters.effects.rules_file import read_rules
from mcp_tool_filter.cli.settings.commands import COMMANDS, Command
from mcp_tool_filter.cli.settings.flags import WORDS, Given
from mcp_tool_filter.cli.settings.usage import UsageError, no_such
from mcp_tool_filter.errors import StartError


def run(typed: Given) -> int:
    """Run the subcommand; return the exit status."""
    command = COMMANDS["rules"]
    match typed.get(WORDS, []):
        case ["check", file]:
            return _check(file)
        case ["test", file, cases]:
            return _test(file, cases)
        case ["explain", file, message]:
            return _explain(file, message, next(iter(typed.get("answers", [])), None))
        case ["schema"]:
            from mcp_tool_filter.policy.rules.schema import json_schema

            print(json.dumps(json_schema(), indent=2))
            return 0
        case words:
            raise _cannot_follow(words, command)


def _cannot_follow(words: Sequence[str], command: Command) -> UsageError:
    if words and words[0] not in command.choices:
        return no_such("command", f"rules {words[0]}", [f"rules {one}" for one in command.choices])
    usages = [one for one in command.usage if words and one.startswith(f"rules {words[0]}")]
    why = " or ".join(f"mcp-tool-filter {usage}" for usage in usages or command.usage)
    return UsageError("The command is not complete", why=why)


def _check(file: str) -> int:
    policy = read_rules(file)
    for warning in policy.warnings:
        print(f"Warning: {warning}", file=sys.stderr)
    print(f"{file}: {_count(len(policy.rules), 'rule')}, no mistakes")
    return 0


def _test(file: str, cases: str) -> int:
    from mcp_tool_filter.cli.commands import rules_cases

    try:
        policy = read_rules(file)
        read = rules_cases.read_cases(_read(cases), cases)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    return rules_cases.run_cases(policy, read)


def _explain(file: str, message: str, answers: str | None) -> int:
    from mcp_tool_filter.cli.commands.rules_explained import explain

    policy = read_rules(file)
    asked = _message(answers) if answers else None
    for line in explain(policy, _message(message), asked):
        print(line)
    return 0


def _message(given: str) -> bytes:
    """Return a message: typed JSON, stdin for -, else the content of a file."""
    if given.lstrip()[:1] in ("{", "["):
        return given.encode()
    return sys.stdin.buffer.read() if given == "-" else _read(given)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {path}", why=error.strerror or str(error)) from None


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
