"""``mcp-tool-filter rules``: check a rules file, run its test cases, and explain its decisions.

A case and an explanation are a rehearsal: the policy judges a message, and nothing is sent.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mcp_tool_filter.cli.flags import WORDS, Given, UsageError, no_such
from mcp_tool_filter.cli.table import COMMANDS, Command
from mcp_tool_filter.cli.terminal import count
from mcp_tool_filter.cli.whole_file import read_whole
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.messages.messages import (
    Message,
    Notification,
    Request,
    Response,
    Single,
    parse_message,
    singles,
)
from mcp_tool_filter.core.policy.effects import at_once
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite
from mcp_tool_filter.rooms.rules import forms
from mcp_tool_filter.rooms.rules.chain import answered, judge
from mcp_tool_filter.rooms.rules.fields import Json, render_json
from mcp_tool_filter.rooms.rules.file import read_rules
from mcp_tool_filter.rooms.rules.forms import Machine, Spot, read_file
from mcp_tool_filter.rooms.rules.host import OfflineHost
from mcp_tool_filter.rooms.rules.policy import Policy
from mcp_tool_filter.rooms.rules.source import Mistaken
from mcp_tool_filter.rooms.rules.state import StateInMemory
from mcp_tool_filter.rooms.rules.subject import Circumstances, Evaluated, RulesOutcome, Subject

# Rehearsals


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """An outcome; ``word`` is pass, block, drop or modify."""

    word: str
    rule: str = ""
    code: int | None = None
    text: str = ""
    """The error's message, or the changed message."""
    message: Single | None = None
    """The message as it would be forwarded."""
    detail: str = ""
    """The reason, if the client does not see it."""

    def __str__(self) -> str:
        by = f" by {self.rule}" if self.rule else ""
        if self.word == "block":
            why = f" (clients do not see this: {self.detail})" if self.detail else ""
            return f"block{by}: {self.code} {json.dumps(self.text)}{why}"
        if self.word == "modify":
            return f"modify{by}: {self.text}"
        return f"{self.word}{by if self.word == 'drop' else ''}"


_GRAVITY = ("pass", "modify", "drop", "block")


class Rehearsal:
    """Use one per test case: limits, caches and the session of users' own classes start empty."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._host = OfflineHost(StateInMemory())
        self._session: dict[str, object] = {}

    def judge(
        self,
        message: Message,
        *,
        asked: Message | None = None,
        from_client: bool = True,
        trace: list[Evaluated] | None = None,
    ) -> Rehearsed:
        """Judge a message; for a batch, return the most severe outcome.

        A response answers ``asked``. The evaluated rules are added to ``trace``.
        """
        about = Circumstances(from_client=from_client, session_id="test", session=self._session)
        request = asked if isinstance(asked, Request | Notification) else None
        outcomes = []
        for single in singles(message):
            subject = Subject(single, about, request if isinstance(single, Response) else None)
            judging = judge(self._policy, subject, time.monotonic, trace)
            outcomes.append(_outcome(at_once(answered(judging, self._host.at_once))))
        return max(outcomes, key=lambda outcome: _GRAVITY.index(outcome.word))


def _outcome(judged: RulesOutcome) -> Rehearsed:
    refusal = judged.refusal
    match judged.to_verdict():
        case Drop():
            return Rehearsed("drop", refusal.rule if refusal else "")
        case Reply() | Rewrite() if refusal:
            told, detail = refusal.message, refusal.detail
            return Rehearsed("block", refusal.rule, refusal.code, told, detail=detail)
        case Rewrite(text):
            rule = judged.done[-1] if judged.done else ""
            return Rehearsed("modify", rule, None, text.decode(), judged.message)
        case Forward() | Reply():
            matched = judged.matched[-1] if judged.matched else ""
            return Rehearsed("pass", matched, message=judged.message)


def lines_of(trace: list[Evaluated]) -> Iterator[str]:
    """Render the evaluated rules, one after the other."""
    for evaluated in trace:
        if evaluated.is_interceptor:
            outcome = "refused" if evaluated.matched else "let it pass"
            yield f"{evaluated.rule} (method interceptor): {outcome}"
        else:
            unmatched = "cannot be judged" if evaluated.asked else "did not match"
            audit = " (audit)" if evaluated.is_audit else ""
            yield f"{evaluated.rule}{audit}: {'matched' if evaluated.matched else unmatched}"
        for label, holds in evaluated.conditions:
            yield f"  {'yes' if holds else 'no '} {label}"
        if evaluated.asked:
            yield f"  ?   {evaluated.asked}"
        for action in evaluated.done:
            yield f"  {'would do' if evaluated.is_audit else 'did'} {action}"


# Test cases


class InvalidCases(StartError):
    def __init__(self, file: str, found: Mistaken) -> None:
        super().__init__(f"Invalid test cases: {file}", why=found.shown(file))


@dataclass(frozen=True, slots=True)
class Case:
    expect: str
    name: str | None
    message: Message | None
    messages: tuple[Message | None, ...]
    response: Message | None
    rule: str | None
    code: int | None
    sender: str

    def judge(self, policy: Policy) -> Rehearsed:
        """Judge the messages in order; return the outcome of the last one, or of its response."""
        rehearsal, from_client = Rehearsal(policy), self.sender == "client"
        outcome = Rehearsed("pass")
        for message in (self.message, *self.messages):
            if message is not None:
                outcome = rehearsal.judge(message, from_client=from_client)
        if self.response is None or outcome.word in ("block", "drop"):
            return outcome
        return rehearsal.judge(self.response, asked=outcome.message, from_client=not from_client)

    def problem_in(self, outcome: Rehearsed) -> str | None:
        if outcome.word != self.expect:
            return self.expect
        if self.rule is not None and outcome.rule != self.rule:
            return f"{self.expect} by {self.rule}"
        if self.code is not None and outcome.code != self.code:
            return f"the code {self.code}"
        return None


def _read_message(spot: Spot) -> Message | None:
    """Read a message: a mapping, or its JSON as text."""

    def parse(value: Json) -> Message:
        text = value if isinstance(value, str) else render_json(value)
        try:
            return parse_message(text.encode())
        except (ProtocolError, UnicodeEncodeError) as error:
            raise ValueError(f"this is no message that rules can judge: {error}") from None

    return spot.tried(parse, spot.node.to_json(), None)


_MESSAGE: forms.Form[Message | None] = forms.Form({}, _read_message)
_CASE = forms.mapping(
    Case,
    {
        "expect": forms.one_of("pass", "block", "drop", "modify"),
        "name": (forms.TEXT, None),
        "message": (_MESSAGE, None),
        "messages": (forms.listed(_MESSAGE), ()),
        "response": (_MESSAGE, None),
        "rule": (forms.TEXT, None),
        "code": (forms.INTEGER, None),
        "from": (forms.one_of("client", "server"), "client"),
    },
)


def _read_case(spot: Spot) -> tuple[str, Case]:
    """Read a case and its name."""
    keys = spot.node.members or {}
    if ("message" in keys) == ("messages" in keys):
        spot.wrong("expected either message or messages")
    case = _CASE.read(spot)
    return spot.path if case.name is None else case.name, case


type Cases = Sequence[tuple[str, Case]]
_CASES = forms.mapping(
    lambda cases: cases, {"cases": forms.listed(forms.Form({}, _read_case), "a list of cases")}
)


def read_cases(raw: bytes, file: str) -> Cases:
    """Read test cases. Raises InvalidCases with every mistake."""
    try:
        return read_file(raw, "cases", _CASES, Machine())
    except Mistaken as found:
        raise InvalidCases(file, found) from None


def run_cases(policy: Policy, cases: Cases) -> int:
    """Judge every case, print a line for each; return the exit status."""
    width = max((len(name) for name, _ in cases), default=0)
    failures = 0
    for name, case in cases:
        outcome = case.judge(policy)
        problem = case.problem_in(outcome)
        failures += bool(problem)
        print(f"{'FAIL' if problem else 'ok  '}  {name:<{width}}  {outcome}")
        if problem:
            print(f"      {'':<{width}}  expected {problem}")
    print(f"{len(cases) - failures} of {len(cases)} cases are judged as expected")
    return 1 if failures else 0


# The commands


def explain(policy: Policy, raw: bytes, answers: bytes | None) -> Iterator[str]:
    """Yield the lines to print."""
    message = _parse(raw)
    asked = _parse(answers) if answers else None
    trace: list[Evaluated] = []
    outcome = Rehearsal(policy).judge(message, asked=asked, trace=trace)
    yield from (f"Warning: {warning}" for warning in policy.warnings)
    if not trace:
        yield "no rule applies to this message"
    yield from lines_of(trace)
    yield from _lines_of_others(policy, trace, is_response=isinstance(message, Response))
    yield f"Outcome: {outcome}"


def _lines_of_others(
    policy: Policy, trace: Sequence[Evaluated], *, is_response: bool
) -> Iterator[str]:
    """Render the rules that were not evaluated."""
    evaluated = {step.rule for step in trace}
    for rule in policy.rules:
        if rule.id not in evaluated:
            fits = rule.for_responses if is_response else rule.for_requests
            other = "requests" if is_response else "responses"
            why = "an earlier rule ended the chain" if fits else f"it is for {other}"
            yield f"{rule.id}: was not evaluated: {why}"


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
            from mcp_tool_filter.rooms.rules.policy import json_schema

            print(json.dumps(json_schema(), indent=2))
            return 0
        case words:
            raise _cannot_follow(words, command)


def _cannot_follow(words: Sequence[str], command: Command) -> UsageError:
    if words and words[0] not in command.choices:
        return no_such(
            "command", f"rules {words[0]}", [f"rules {choice}" for choice in command.choices]
        )
    usages = [usage for usage in command.usage if words and usage.startswith(f"rules {words[0]}")]
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
        return read_whole(path)
    except OSError as error:
        raise UsageError(f"Cannot read {path}", why=error.strerror or str(error)) from None
