"""``mcp-tool-filter rules``: check a rules file, test it, and ask it why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mcp_tool_filter.adapters.effects.rules_file import read_rules
from mcp_tool_filter.cli.settings.usage import UsageError
from mcp_tool_filter.errors import StartError


def run(argv: Sequence[str]) -> int:
    """Do what is asked; return the exit status."""
    args = _parser().parse_args(argv)
    match args.command:
        case "check":
            return _check(args.file)
        case "test":
            return _test(args.file, args.cases)
        case "explain":
            return _explain(args.file, args.message, args.answers)
        case _:
            from mcp_tool_filter.policy.rules.schema import json_schema

            print(json.dumps(json_schema(), indent=2))
            return 0


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
    """Return a message: JSON as it was typed, standard input for -, else a file."""
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcp-tool-filter rules",
        description="Check a rules file, test it, and ask it what it does to a message.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check", help="report every mistake in a rules file",
        epilog="Exit status: 0 if there is no mistake, else 1.",
    )  # fmt: skip
    check.add_argument("file", metavar="FILE")
    test = commands.add_parser(
        "test", help="judge the messages of test cases",
        epilog="Exit status: 0 if all are judged as expected, 1 if not, 2 without a usable file.",
    )  # fmt: skip
    test.add_argument("file", metavar="FILE")
    test.add_argument(
        "cases", metavar="CASES",
        help="YAML: cases: [{name, message or messages, response, expect: pass, block, drop or "
        "modify, rule, code}]",
    )  # fmt: skip
    explain = commands.add_parser("explain", help="show which rules judge a message, and how")
    explain.add_argument("file", metavar="FILE")
    explain.add_argument("message", metavar="MESSAGE", help="a file, - for standard input, or JSON")
    explain.add_argument("--answers", metavar="MESSAGE", help="the request that a response answers")
    commands.add_parser("schema", help="print the JSON schema of rules files, for your editor")
    return parser
