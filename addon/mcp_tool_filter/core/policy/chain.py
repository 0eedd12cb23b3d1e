"""Decide what happens to a message: ask the tool filter first, then the other links in order.

Every message of every transport is decided here, one at a time. A batch is decided member by
member: the forwarded members form a new batch, and our own replies are added to its answer later
("owed").

The other links never see what the tool filter refuses. The tool filter judges again what a link
rewrites, so that no link can make a denied tool callable or visible. If the snapshot answers a
list, the links see that request and that response too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import (
    INVALID_REQUEST,
    Batch,
    Single,
    ids_in,
    parse_message,
    render_batch,
    render_error,
)
from mcp_tool_filter.core.policy.effects import Decision, begin, then
from mcp_tool_filter.core.policy.situation import Direction, Link, Situation
from mcp_tool_filter.core.policy.tool_filter import filter_from_client, filter_from_upstream
from mcp_tool_filter.core.policy.verdict import (
    VERDICTS,
    Drop,
    Forward,
    Reason,
    Reply,
    Rewrite,
    Verdict,
    Why,
)

_LIMITS = Limits()
_SPACE = " \t\n\r"


def decide_from_client(message: Single, situation: Situation) -> Decision[Verdict]:
    """Decide on a client's message. Raises ProtocolError if it cannot be judged."""
    verdict = filter_from_client(message, situation)
    if not situation.links:
        return verdict
    if _goes_on(verdict):
        situation.is_answered = isinstance(verdict, Reply)
        linked = _ask_links(message, situation, situation.links, filter_from_client)
        if isinstance(linked, Forward) and isinstance(verdict, Forward):
            return linked
        return _after(linked, partial(_settle, message, situation))
    return verdict


def decide_from_upstream(message: Single, situation: Situation) -> Decision[Verdict]:
    """Decide on the upstream's message. Raises ProtocolError if it cannot be judged."""
    return decide_filtered(message, filter_from_upstream(message, situation), situation)


def decide_filtered(message: Single, verdict: Verdict, situation: Situation) -> Decision[Verdict]:
    """Ask the links about the upstream's message, on which the tool filter has decided."""
    if not situation.links:
        return verdict
    if isinstance(verdict, Rewrite):
        message = _single(verdict.text, situation)
    linked = decide_accepted(message, situation)
    return verdict if isinstance(linked, Forward) else _after(linked, partial(_or_else, verdict))


def decide_accepted(message: Single, situation: Situation) -> Decision[Verdict]:
    """Ask only the links: the tool filter has already accepted the message."""
    return _ask_links(message, situation, situation.links, _filter_changed_from_upstream)


def judge_again(message: Single, verdict: Verdict, situation: Situation) -> Verdict:
    """Apply the tool filter to a message that has waited: the patterns may have been edited
    meanwhile."""
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
    again = filter_from_client(message, replace(situation, may_use_cache=False))
    return _or_else(verdict, again)


def _judge_list_again(message: Single, verdict: Verdict, situation: Situation) -> Verdict:
    is_ours = not isinstance(verdict, Forward) and verdict.reason.why in (Why.STORED, Why.CHANGED)
    if isinstance(verdict, Rewrite):
        message = _single(verdict.text, situation)
    elif not isinstance(verdict, Forward) and not is_ours:
        return verdict
    return _or_else(verdict, filter_from_upstream(message, situation, is_ours=is_ours))


def judge_by_filter(message: Single, situation: Situation) -> Verdict:
    """Ask only the tool filter about a message that a link has changed."""
    if situation.direction is Direction.FROM_CLIENT:
        return filter_from_client(message, situation)
    return _filter_changed_from_upstream(message, situation)


def refusal(
    raw: bytes,
    why: Why,
    code: int = INVALID_REQUEST,
    text: str = "",
    limits: Limits = _LIMITS,
    detail: str = "",
) -> Reply:
    """Refuse a message that we cannot judge, with an error for each id in it; only observers see
    the detail."""
    message = text or "Invalid Request"
    replies = [render_error(id, code, message) for id in ids_in(raw, limits)]
    body = render_batch(replies) if len(replies) > 1 else (replies or [b""])[0]
    return Reply(body or render_error(None, code, message), Reason(why, detail=detail or message))


def join_from_client(batch: Batch, verdicts: Sequence[Verdict]) -> Verdict:
    """Join the forwarded members of a batch; our own replies are owed to its answer."""
    if all(isinstance(verdict, Forward) for verdict in verdicts):
        return Forward()
    kept = [text for text in map(_passed, batch.members, verdicts) if text is not None]
    owed = tuple(verdict.text for verdict in verdicts if isinstance(verdict, Reply))
    reason = _joined(verdicts)
    if kept:
        return Rewrite(render_batch(kept), reason, owed)
    return Reply(render_batch(list(owed)), reason) if owed else Drop(reason)


def join_from_upstream(batch: Batch, verdicts: Sequence[Verdict]) -> Verdict:
    """Join the members of a batch that the client gets, and our replies to the upstream."""
    joined = join_from_client(batch, verdicts)
    if not isinstance(joined, Rewrite):
        return joined
    rewritten = Rewrite(joined.text, joined.reason, to_upstream=joined.owed)
    return keep_space(batch.members[0].place.text, rewritten)


def keep_space(text: str, verdict: Verdict) -> Verdict:
    """Keep the white space around a rewritten document, such as a final newline."""
    before = text[: len(text) - len(text.lstrip(_SPACE))]
    after = text[len(text.rstrip(_SPACE)) :]
    if not isinstance(verdict, Rewrite) or not (before or after):
        return verdict
    return replace(verdict, text=b"".join([before.encode(), verdict.text, after.encode()]))


_filter_changed_from_upstream = partial(filter_from_upstream, is_ours=True)
"""Judges a message that a link has rewritten: a link may change an allowed tool's definition."""

type _Filter = Callable[[Single, Situation], Verdict]


def _ask_links(
    message: Single, situation: Situation, links: tuple[Link, ...], judge_again: _Filter
) -> Decision[Verdict]:
    """Ask the links in order; the tool filter judges again what one rewrites."""
    for at, link in enumerate(links):
        decision = link.decide(message, situation)
        if not isinstance(decision, Forward):  # most links do nothing with most messages
            go_on = partial(_go_on, message, situation, links[at + 1 :], judge_again)
            return _after(decision, go_on)
    return Forward()


def _after(
    decision: Decision[Verdict], go_on: Callable[[Verdict], Decision[Verdict]]
) -> Decision[Verdict]:
    """Continue with a verdict: at once, as nearly always, or when it has been made."""
    if not isinstance(decision, VERDICTS):
        return then(begin(decision), go_on)
    return go_on(decision)


def _go_on(
    message: Single,
    situation: Situation,
    links: tuple[Link, ...],
    judge_again: _Filter,
    verdict: Verdict,
) -> Decision[Verdict]:
    """Ask the links after one that has decided."""
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
    return _after(rest, partial(_or_else, verdict))


def _settle(message: Single, situation: Situation, linked: Verdict) -> Decision[Verdict]:
    """Answer a list request from the snapshot, now that all links have agreed."""
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
    return _after(told, partial(_as_reply, verdict))


def _as_reply(reply: Reply, verdict: Verdict) -> Verdict:
    return (
        Reply(verdict.text, verdict.reason)
        if isinstance(verdict, Rewrite)
        else _or_else(reply, verdict)
    )


def _or_else(before: Verdict, verdict: Verdict) -> Verdict:
    """Return the verdict of the later links, unless they only forward."""
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


def join_reported(verdicts: Sequence[Verdict]) -> Verdict:
    """Join verdicts on one message that are only reported: a refusal says more than a change."""
    ended = [verdict for verdict in verdicts if isinstance(verdict, Reply | Drop)]
    first: Verdict = next(iter(ended), verdicts[0])
    return first if isinstance(first, Forward) else replace(first, reason=_joined(verdicts))


def _joined(verdicts: Sequence[Verdict]) -> Reason:
    reasons = [verdict.reason for verdict in verdicts if not isinstance(verdict, Forward)]
    first = reasons[0]
    return Reason(
        first.why,
        tuple(tool for reason in reasons for tool in reason.tools),
        first.detail,
        drift=tuple(sentence for reason in reasons for sentence in reason.drift),
        rule=", ".join(dict.fromkeys(reason.rule for reason in reasons if reason.rule)),
    )
