"""Change a part of a message: the rest keeps its bytes, and the tool filter judges it again."""

from __future__ import annotations

from collections.abc import Callable

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.rules.edits import Edited, ImpossibleChange
from mcp_tool_filter.policy.rules.fields import Key
from mcp_tool_filter.policy.rules.subject import Subject
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.protocol.messages import Batch, Request, Response, Single, parse_message

type Edit = Callable[[Edited], Edited]


def edit_part(subject: Subject, part: str, edit: Edit) -> str | None:
    """Return the message's text with ``params`` or ``result`` edited; None if nothing changes.

    Missing params are created if the edit adds something to them. An error has no result and stays
    unchanged.
    """
    place = subject.message.place
    raw = place.text[place.start : place.end]
    value = subject.part(part)
    if value is None:
        if part == "result":
            return None
        made = edit(Edited("{}")).text
        return None if made == "{}" else Edited(raw).set([Key("params")], made).text
    written = place.text[value.start : value.end]
    changed = edit(Edited(written, subject.look)).text
    if changed == written:
        return None
    return raw[: value.start - place.start] + changed + raw[value.end - place.start :]


def replace_message(subject: Subject, text: str) -> tuple[Subject, Verdict]:
    """Return the changed message and the tool filter's verdict on it.

    Raises ImpossibleChange if it is not a message, or no longer the same request or response.
    """
    message = _parse(text, subject)
    try:
        verdict = subject.about.filter(message)
    except ProtocolError as error:
        raise ImpossibleChange(f"the changed message cannot be judged: {error}") from None
    match verdict:
        case Rewrite(rewritten):
            message = _parse(rewritten.decode(), subject)
        case Forward() | Reply() | Drop():
            pass
    request = subject.request if isinstance(message, Response) else None
    changed = Subject(message, subject.about, request, subject.budget)
    changed.watch = subject.watch
    return changed, verdict


def _parse(text: str, subject: Subject) -> Single:
    try:
        message = parse_message(text.encode(), subject.about.limits)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise ImpossibleChange(f"the result is not a message: {error}") from None
    old = subject.message
    if isinstance(message, Batch) or type(message) is not type(old):
        raise ImpossibleChange("the result is another kind of message")
    if isinstance(message, Request | Response) and message.id != _id_of(old):
        raise ImpossibleChange("the result has another id")
    return message


def _id_of(message: Single) -> str | None:
    return message.id if isinstance(message, Request | Response) else None
