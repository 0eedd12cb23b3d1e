"""``mcp-tool-filter rules``: check a rules file, run its test cases, and explain its decisions."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcp_tool_filter.adapters.rules.file import read_rules
from mcp_tool_filter.adapters.rules.rehearsal import (
    Rehearsal,
    Rehearsed,
    lines_of,
    rehearse,
    shown_outcome,
)
from mcp_tool_filter.cli.flags import WORDS, Given, UsageError, no_such
from mcp_tool_filter.cli.table import COMMANDS, Command
from mcp_tool_filter.cli.terminal import count
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.protocol.messages import Message, Notification, Request, parse_message
from mcp_tool_filter.rules.fields import render_json
from mcp_tool_filter.rules.model import Policy
from mcp_tool_filter.rules.source import Mistake, Spot, Unreadable, read_source
from mcp_tool_filter.rules.subject import Evaluated

OUTCOMES = ("pass", "block", "drop", "modify")


class InvalidCases(StartError):
    def __init__(self, file: str, mistakes: Sequence[Mistake]) -> None:
        lines = [one.shown(file) for one in sorted(set(mistakes))]
        super().__init__(f"Invalid test cases: {file}", why="\n".join(lines))


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    messages: tuple[Message, ...]
    response: Message | None
    expect: str
    rule: str | None
    code: int | None
    from_client: bool


def read_cases(raw: bytes, file: str) -> list[Case]:
    """Read test cases. Raises InvalidCases with every mistake."""
    try:
        root, mistakes = read_source(raw, "cases")
    except Unreadable as error:
        raise InvalidCases(file, error.mistakes) from None
    table = Spot(root, "", mistakes).table(["cases"])
    found = [_case(one) for one in table["cases"].items(what="a list of cases")]
    if mistakes:
        raise InvalidCases(file, mistakes)
    return found


def _case(spot: Spot) -> Case:
    table = spot.table(
        ["expect"], ["name", "message", "messages", "response", "rule", "code", "from"]
    )
    if ("message" in table) == ("messages" in table):
        spot.wrong("expected either message or messages")
    one, several = table.find("message"), table.find("messages")
    spots = [one] if one else list(several.items()) if several else []
    response = table.find("response")
    return Case(
        table.read("name", Spot.text, spot.path),
        tuple(message for each in spots if (message := _message_in(each)) is not None),
        _message_in(response) if response else None,
        table["expect"].one_of(OUTCOMES),
        table.read("rule", Spot.text, None),
        table.read("code", Spot.integer, None),
        table.read("from", lambda each: each.one_of(("client", "server")), "client") == "client",
    )


def _message_in(spot: Spot) -> Message | None:
    """Read a message: a mapping, or its JSON as text."""
    value = spot.json()
    text = value if isinstance(value, str) else render_json(value)
    try:
        return parse_message(text.encode())
    except (ProtocolError, UnicodeEncodeError) as error:
        spot.wrong(f"this is no message that rules can judge: {error}")
        return None


def run_cases(policy: Policy, cases: Sequence[Case]) -> int:
    """Judge every case, print a line for each; return the exit status."""
    width = max((len(case.name) for case in cases), default=0)
    failures = 0
    for case in cases:
        outcome = _judge(policy, case)
        problem = _problem_in(outcome, case)
        failures += bool(problem)
        print(f"{'FAIL' if problem else 'ok  '}  {case.name:<{width}}  {shown_outcome(outcome)}")
        if problem:
            print(f"      {'':<{width}}  expected {problem}")
    print(f"{len(cases) - failures} of {len(cases)} cases are judged as expected")
    return 1 if failures else 0


def _judge(policy: Policy, case: Case) -> Rehearsed:
    """Judge a case's messages in order; return the outcome of the last one, or of its response."""
    rehearsal = Rehearsal(policy)
    outcome = Rehearsed("pass")
    for message in case.messages:
        outcome = rehearse(rehearsal, message, from_client=case.from_client)
    if case.response is None or outcome.word in ("block", "drop"):
        return outcome
    asked = outcome.message
    return rehearse(
        rehearsal,
        case.response,
        asked=asked if isinstance(asked, Request | Notification) else None,
        from_client=not case.from_client,
    )


def _problem_in(outcome: Rehearsed, case: Case) -> str | None:
    if outcome.word != case.expect:
        return case.expect
    if case.rule is not None and outcome.rule != case.rule:
        return f"{case.expect} by {case.rule}"
    if case.code is not None and outcome.code != case.code:
        return f"the code {case.code}"
    return None


def explain(policy: Policy, raw: bytes, answers: bytes | None) -> Iterator[str]:
    """Yield the lines to print."""
    message = _parse(raw)
    asked = _parse(answers) if answers else None
    if not isinstance(asked, Request | Notification):
        asked = None
    trace: list[Evaluated] = []
    outcome = rehearse(Rehearsal(policy), message, asked=asked, trace=trace)
    yield from (f"Warning: {warning}" for warning in policy.warnings)
    if not trace:
        yield "no rule applies to this message"
    yield from lines_of(trace)
    yield f"Outcome: {shown_outcome(outcome)}"


def _parse(raw: bytes) -> Message:
    try:
        return parse_message(raw)
    except ProtocolError as error:
        raise UsageError("This is no message that rules can judge", why=str(error)) from None


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
            from mcp_tool_filter.rules.load import json_schema

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
    print(f"{file}: {count(len(policy.rules), 'rule')}, no mistakes")
    return 0


def _test(file: str, cases: str) -> int:
    try:
        policy = read_rules(file)
        read = read_cases(_read(cases), cases)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    return run_cases(policy, read)


def _explain(file: str, message: str, answers: str | None) -> int:
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
