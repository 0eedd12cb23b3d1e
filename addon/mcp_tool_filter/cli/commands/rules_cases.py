"""``mcp-tool-filter rules test``: check that a policy judges messages as its author expects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mcp_tool_filter.adapters.effects.rehearsal import Rehearsal, Rehearsed, rehearse, shown_outcome
from mcp_tool_filter.errors import ProtocolError, StartError
from mcp_tool_filter.policy.rules.fields import render_json
from mcp_tool_filter.policy.rules.model import Policy
from mcp_tool_filter.policy.rules.source import Mistake, Spot, Unreadable, read_source
from mcp_tool_filter.protocol.messages import Message, Notification, Request, parse_message

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
        tuple(message for each in spots if (message := _message(each)) is not None),
        _message(response) if response else None,
        table["expect"].one_of(OUTCOMES),
        table.read("rule", Spot.text, None),
        table.read("code", Spot.integer, None),
        table.read("from", lambda each: each.one_of(("client", "server")), "client") == "client",
    )


def _message(spot: Spot) -> Message | None:
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
