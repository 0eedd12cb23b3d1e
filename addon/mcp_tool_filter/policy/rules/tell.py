"""Actions that never wait: log lines, counters, webhooks and copies."""

from __future__ import annotations

from mcp_tool_filter.errors import printable
from mcp_tool_filter.policy.effects import Deciding
from mcp_tool_filter.policy.rule_effects import (
    Measure,
    SendCopy,
    SendWebhook,
    WriteLog,
)
from mcp_tool_filter.policy.rules.actions import (
    Action,
    Fork,
    Log,
    Metric,
    Webhook,
)
from mcp_tool_filter.policy.rules.edits import ImpossibleChange
from mcp_tool_filter.policy.rules.fields import Document
from mcp_tool_filter.policy.rules.rule import Rule
from mcp_tool_filter.policy.rules.run import Run, message_text
from mcp_tool_filter.policy.rules.templates import in_url
from mcp_tool_filter.policy.rules.values import quote
from mcp_tool_filter.protocol.messages import Request
from mcp_tool_filter.protocol.scan import Value


def tell(run: Run, rule: Rule, action: Action) -> Deciding[None]:
    """Carry out an action that never waits and never changes the message."""
    match action:
        case Log(level, message):
            text = printable((yield from run.text(message, rule.id)))
            subject, session = run.subject, run.subject.about.session_id
            yield WriteLog(level, text, rule.id, session, subject.method, subject.tool, subject.id)
        case Metric(name, value):
            text = yield from run.text(value, rule.id)
            yield Measure(name, _countable(text))
        case Webhook():
            yield from _call_webhook(run, rule, action)
        case Fork(copies, to):
            request = run.subject.message
            if isinstance(request, Request) and run.subject.about.from_client:
                head, tail = _around_id(request)
                for _ in range(copies):
                    yield SendCopy(head, tail, run.subject.about.origin, to, rule.id)
        case _:
            pass


def _call_webhook(run: Run, rule: Rule, action: Webhook) -> Deciding[None]:
    url = yield from run.text(action.url, rule.id, in_url)
    headers = []
    for name, value in action.headers:
        text = yield from run.text(value, rule.id)
        headers.append((name, printable(text)))
    subject = run.subject
    refusal = run.judgement.refusal
    members = {
        "rule": quote(rule.id),
        "action": quote(refusal.action if refusal else "webhook"),
        "session": quote(subject.about.session_id),
        "method": quote(subject.method) if subject.method is not None else "null",
        "id": subject.id or "null",
        "tool": quote(subject.tool) if subject.tool is not None else "null",
    }
    if action.include_message:
        members["message"] = message_text(subject)
    written = ",".join(f"{quote(name)}:{value}" for name, value in members.items())
    yield SendWebhook(url, tuple(headers), written, action.timeout, rule.id)


def _around_id(message: Request) -> tuple[str, str]:
    place = message.place
    id = Document(place.text).open(Value(place.start, place.end))["id"]
    return place.text[place.start : id.start], place.text[id.end : place.end]


def _countable(text: str) -> float:
    """Return the increment of a counter.

    Raises ImpossibleChange if it is negative: counters only grow.
    """
    try:
        number = float(text)
    except ValueError:
        raise ImpossibleChange(f"{text!r} is not a number") from None
    if not 0 <= number < float("inf"):
        raise ImpossibleChange(f"a counter cannot grow by {text!r}")
    return number
