"""What becomes of a message: asks the links in order, the tool filter first.

Whatever arrives, by whatever transport, is decided here. A batch is decided member by member:
what goes on is put together again, and what we answer ourselves is owed to its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from mcp_tool_filter.policy.list_from import ListFrom
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.tool_filter import (
    Envelope,
    decide_call,
    decide_list,
    decide_listing,
)
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    INVALID_REQUEST,
    Batch,
    Message,
    Notification,
    Request,
    Response,
    Single,
    ids_in,
    render_batch,
    render_error,
)
from mcp_tool_filter.protocol.tools import ListRequest, parse_list_request, parse_tool_call

_LIMITS = Limits()
_SPACE = " \t\n\r"


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a decision rests on besides the message."""

    snapshot: Snapshot
    list_from: ListFrom = ListFrom.AUTO
    envelope: Envelope | None = None
    """The frame of the list in the revision that the client speaks."""
    may_use_cache: bool = False
    """The client's session is known, and it has no credentials of its own."""


type MethodOf = Callable[[Message], str | None]
"""What a response answers, if that is known."""


def _unknown(message: Message) -> None:
    return None


def decide_from_client(message: Message, situation: Situation) -> Verdict:
    """Decide on what a client says. Raises ProtocolError for what cannot be judged."""
    if isinstance(message, Batch):
        return _decide_batch_from_client(message, situation)
    return _decide_single_from_client(message, situation)


def decide_from_upstream(
    message: Message, situation: Situation, method_of: MethodOf = _unknown
) -> Verdict:
    """Decide on what the upstream says. Raises ProtocolError for what cannot be judged."""
    if isinstance(message, Batch):
        verdict = _decide_batch_from_upstream(message, situation, method_of)
        text = message.members[0].place.text
    else:
        verdict = _decide_single_from_upstream(message, situation, method_of)
        text = message.place.text
    return _with_space_of(text, verdict) if isinstance(verdict, Rewrite) else verdict


def refusal(
    raw: bytes, why: Why, code: int = INVALID_REQUEST, text: str = "", limits: Limits = _LIMITS
) -> Reply:
    """Answer what we cannot judge, to all who may be waiting for it."""
    message = text or "Invalid Request"
    replies = [render_error(id, code, message) for id in ids_in(raw, limits)]
    body = render_batch(replies) if len(replies) > 1 else (replies or [b""])[0]
    return Reply(body or render_error(None, code, message), Reason(why, detail=message))


def _decide_single_from_client(message: Single, situation: Situation) -> Verdict:
    match message:
        case Request(method="tools/call") | Notification(method="tools/call"):
            return decide_call(parse_tool_call(message), situation.snapshot)
        case Request(method="tools/list"):
            return _decide_list(parse_list_request(message), situation)
        case Request() | Notification() | Response():
            return Forward()


def _decide_list(request: ListRequest, situation: Situation) -> Verdict:
    return decide_list(
        request,
        situation.snapshot,
        situation.envelope,
        list_from=situation.list_from,
        sound=situation.may_use_cache,
    )


def _decide_batch_from_client(batch: Batch, situation: Situation) -> Verdict:
    verdicts = [_decide_single_from_client(member, situation) for member in batch.members]
    if all(isinstance(verdict, Forward) for verdict in verdicts):
        return Forward()
    kept = [
        member.place.raw
        for member, verdict in zip(batch.members, verdicts, strict=True)
        if isinstance(verdict, Forward)
    ]
    owed = tuple(verdict.text for verdict in verdicts if isinstance(verdict, Reply))
    reason = _joined(verdicts)
    if kept:
        return Rewrite(render_batch(kept), reason, owed)
    return Reply(render_batch(list(owed)), reason) if owed else Drop(reason)


def _decide_single_from_upstream(
    message: Single, situation: Situation, method_of: MethodOf
) -> Verdict:
    match message:
        case Request(method="sampling/createMessage"):
            return Forward()  # its tools are the model's, for that one request
        case Request() | Notification():
            return decide_listing(message, situation.snapshot, expected=False)
        case Response():
            expected = method_of(message) in (None, "tools/list")
            return decide_listing(message, situation.snapshot, expected=expected)


def _decide_batch_from_upstream(batch: Batch, situation: Situation, method_of: MethodOf) -> Verdict:
    verdicts = [_decide_single_from_upstream(one, situation, method_of) for one in batch.members]
    if all(isinstance(verdict, Forward) for verdict in verdicts):
        return Forward()
    members = [
        verdict.text if isinstance(verdict, Rewrite) else member.place.raw
        for member, verdict in zip(batch.members, verdicts, strict=True)
    ]
    return Rewrite(render_batch(members), _joined(verdicts))


def _with_space_of(text: str, verdict: Rewrite) -> Rewrite:
    """Keep the white space before and after a value that is rewritten, such as a last newline."""
    before = text[: len(text) - len(text.lstrip(_SPACE))]
    after = text[len(text.rstrip(_SPACE)) :]
    if not before and not after:
        return verdict
    return replace(verdict, text=b"".join([before.encode(), verdict.text, after.encode()]))


def _joined(verdicts: list[Verdict]) -> Reason:
    reasons = [verdict.reason for verdict in verdicts if not isinstance(verdict, Forward)]
    return Reason(
        reasons[0].why,
        tuple(tool for reason in reasons for tool in reason.tools),
        drift=tuple(sentence for reason in reasons for sentence in reason.drift),
    )
