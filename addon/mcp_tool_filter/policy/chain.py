"""What becomes of a message: asks the links in order, the tool filter first.

Whatever arrives, by whatever transport, is decided here, one message at a time. A batch is decided
member by member: what goes on is put together again, and our own replies are owed to its answer.

The links after the tool filter never see what it refuses. What a link rewrites, the tool filter
judges again, so that no link can make a denied tool callable or visible. A list that the snapshot
answers passes the links too, first as a request and then as a response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.policy.effects import Decision, begin, then
from mcp_tool_filter.policy.exchange import Direction
from mcp_tool_filter.policy.list_from import ListFrom
from mcp_tool_filter.policy.situation import Link, Situation
from mcp_tool_filter.policy.tool_filter import filter_from_client, filter_from_upstream
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.messages import (
    INVALID_REQUEST,
    Batch,
    Single,
    ids_in,
    parse_message,
    render_batch,
    render_error,
)

_LIMITS = Limits()
_SPACE = " \t\n\r"


def decide_from_client(message: Single, situation: Situation) -> Decision[Verdict]:
    """Decide on what a client says. Raises ProtocolError for what cannot be judged."""
    verdict = filter_from_client(message, situation)
    if not situation.links:
        return verdict
    if _goes_on(verdict):
        situation.is_answered = isinstance(verdict, Reply)
        linked = _ask_links(message, situation, situation.links, filter_from_client)
        if isinstance(linked, Forward) and isinstance(verdict, Forward):
            return linked
        return then(linked, partial(_settle, message, situation))
    return verdict


def decide_from_upstream(message: Single, situation: Situation) -> Decision[Verdict]:
    """Decide on what the upstream says. Raises ProtocolError for what cannot be judged."""
    verdict = filter_from_upstream(message, situation)
    if not situation.links:
        return verdict
    if isinstance(verdict, Rewrite):
        message = _single(verdict.text, situation)
    linked = _ask_links(message, situation, situation.links, _filter_changed_from_upstream)
    return verdict if isinstance(linked, Forward) else then(linked, partial(_or_else, verdict))


def decide_accepted(message: Single, situation: Situation) -> Decision[Verdict]:
    """Ask only the links about what the tool filter need not look at."""
    return _ask_links(message, situation, situation.links, _filter_changed_from_upstream)


def judge_again(message: Single, verdict: Verdict, situation: Situation) -> Verdict:
    """Apply the tool filter to what has waited: the patterns may have been edited meanwhile."""
    if situation.direction is Direction.FROM_UPSTREAM:
        return _judge_list_again(message, verdict, situation)
    if isinstance(verdict, Reply):
        if verdict.reason.why not in (Why.CACHED, Why.STORED, Why.CHANGED):
            return verdict
        shown = Forward() if verdict.reason.why is Why.CACHED else verdict
        answer = _judge_list_again(_single(verdict.text, situation), shown, situation)
        return _as_reply(verdict, answer)
    if isinstance(verdict, Rewrite):
        message = _single(verdict.text, situation)
    elif isinstance(verdict, Drop):
        return verdict
    again = filter_from_client(message, replace(situation, list_from=ListFrom.UPSTREAM))
    return _or_else(verdict, again)


def _judge_list_again(message: Single, verdict: Verdict, situation: Situation) -> Verdict:
    is_ours = not isinstance(verdict, Forward) and verdict.reason.why in (Why.STORED, Why.CHANGED)
    if isinstance(verdict, Rewrite):
        message = _single(verdict.text, situation)
    elif not isinstance(verdict, Forward) and not is_ours:
        return verdict
    return _or_else(verdict, filter_from_upstream(message, situation, is_ours=is_ours))


def judge_by_filter(message: Single, situation: Situation) -> Verdict:
    """Ask the tool filter alone, for a link that has changed a message."""
    if situation.direction is Direction.FROM_CLIENT:
        return filter_from_client(message, situation)
    return _filter_changed_from_upstream(message, situation)


def refusal(
    raw: bytes, why: Why, code: int = INVALID_REQUEST, text: str = "", limits: Limits = _LIMITS
) -> Reply:
    """Answer what we cannot judge, to all who may be waiting for it."""
    message = text or "Invalid Request"
    replies = [render_error(id, code, message) for id in ids_in(raw, limits)]
    body = render_batch(replies) if len(replies) > 1 else (replies or [b""])[0]
    return Reply(body or render_error(None, code, message), Reason(why, detail=message))


def join_from_client(batch: Batch, verdicts: Sequence[Verdict]) -> Verdict:
    """Put together what goes on of a batch; what we reply ourselves is owed to its answer."""
    if all(isinstance(verdict, Forward) for verdict in verdicts):
        return Forward()
    kept = [text for text in map(_passed, batch.members, verdicts) if text is not None]
    owed = tuple(verdict.text for verdict in verdicts if isinstance(verdict, Reply))
    reason = _joined(verdicts)
    if kept:
        return Rewrite(render_batch(kept), reason, owed)
    return Reply(render_batch(list(owed)), reason) if owed else Drop(reason)


def join_from_upstream(batch: Batch, verdicts: Sequence[Verdict]) -> Verdict:
    """Put together what a client gets of a batch, and what the upstream is answered."""
    joined = join_from_client(batch, verdicts)
    if not isinstance(joined, Rewrite):
        return joined
    rewritten = Rewrite(joined.text, joined.reason, to_upstream=joined.owed)
    return keep_space(batch.members[0].place.text, rewritten)


def keep_space(text: str, verdict: Verdict) -> Verdict:
    """Keep the white space around a document that is rewritten, such as a last newline."""
    before = text[: len(text) - len(text.lstrip(_SPACE))]
    after = text[len(text.rstrip(_SPACE)) :]
    if not isinstance(verdict, Rewrite) or not (before or after):
        return verdict
    return replace(verdict, text=b"".join([before.encode(), verdict.text, after.encode()]))


def _filter_changed_from_upstream(message: Single, situation: Situation) -> Verdict:
    """Judge what a link has rewritten: it may say something else of an allowed tool."""
    return filter_from_upstream(message, situation, is_ours=True)


type _Filter = Callable[[Single, Situation], Verdict]


def _ask_links(
    message: Single, situation: Situation, links: tuple[Link, ...], judge_again: _Filter
) -> Decision[Verdict]:
    """Ask the links in order; what one rewrites goes through the tool filter again."""
    for at, link in enumerate(links):
        decision = link.decide(message, situation)
        if not isinstance(decision, Forward):  # most links have nothing to say of most messages
            rest = links[at + 1 :]
            return then(begin(decision), partial(_go_on, message, situation, rest, judge_again))
    return Forward()


def _go_on(
    message: Single,
    situation: Situation,
    links: tuple[Link, ...],
    judge_again: _Filter,
    verdict: Verdict,
) -> Decision[Verdict]:
    """Ask the links behind one that has decided."""
    if isinstance(verdict, Forward):
        return _ask_links(message, situation, links, judge_again)
    if not isinstance(verdict, Rewrite):
        return verdict
    changed = _single(verdict.text, situation)
    judged = judge_again(changed, situation)
    if isinstance(judged, Rewrite):
        verdict, changed = judged, _single(judged.text, situation)
    elif not _goes_on(judged):
        return judged
    rest = _ask_links(changed, situation, links, judge_again)
    return then(rest, partial(_or_else, verdict))


def _settle(message: Single, situation: Situation, linked: Verdict) -> Decision[Verdict]:
    """Answer a list that the snapshot knows, now that all links have agreed."""
    if isinstance(linked, Rewrite):
        message = _single(linked.text, situation)
    elif not isinstance(linked, Forward):
        return linked
    verdict = filter_from_client(message, situation)
    if not isinstance(verdict, Reply):
        return linked
    answer = replace(situation, direction=Direction.FROM_UPSTREAM)
    message = _single(verdict.text, situation)
    told = _ask_links(message, answer, answer.links, _filter_changed_from_upstream)
    return then(told, partial(_as_reply, verdict))


def _as_reply(reply: Reply, verdict: Verdict) -> Verdict:
    return (
        Reply(verdict.text, verdict.reason)
        if isinstance(verdict, Rewrite)
        else _or_else(reply, verdict)
    )


def _or_else(before: Verdict, verdict: Verdict) -> Verdict:
    """Return what the later links decided, unless they only agreed."""
    return before if isinstance(verdict, Forward) else verdict


def _single(text: bytes, situation: Situation) -> Single:
    message = parse_message(text, situation.limits)
    if isinstance(message, Batch):
        raise ProtocolError("a batch in place of a message")
    return message


def _goes_on(verdict: Verdict) -> bool:
    """Tell whether the links see a request: it is forwarded, or the snapshot answers it."""
    is_cached = isinstance(verdict, Reply) and verdict.reason.why is Why.CACHED
    return is_cached or isinstance(verdict, Forward)


def _passed(member: Single, verdict: Verdict) -> bytes | None:
    match verdict:
        case Forward():
            return member.place.raw
        case Rewrite(text):
            return text
        case Reply() | Drop():
            return None


def _joined(verdicts: Sequence[Verdict]) -> Reason:
    reasons = [verdict.reason for verdict in verdicts if not isinstance(verdict, Forward)]
    return Reason(
        reasons[0].why,
        tuple(tool for reason in reasons for tool in reason.tools),
        drift=tuple(sentence for reason in reasons for sentence in reason.drift),
    )
