"""Where an editor sits: a client's message is edited before it is judged, and what the client gets
after it was judged.

So policy, rules and observers have the server's own names and definitions. An editor is set only
if the user has edits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import Batch, Single, render_batch
from mcp_tool_filter.core.policy.effects import Decision, then
from mcp_tool_filter.core.policy.situation import Direction, Editor
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why


def decide_edited(
    editor: Editor,
    message: Single,
    judged: Judged,
    snapshot: Snapshot,
    limits: Limits,
    decide: Callable[[Single], Decision[Verdict]],
) -> Decision[Verdict]:
    """Decide on a client's message under the server's own names. Raises ProtocolError."""
    asked = editor.asked(message, snapshot, limits)
    refusal = judged.refusal = asked.refusal
    if asked.sent is not message:
        judged.message, judged.sent = asked.seen, asked.sent
    decision = decide(asked.sent)
    exchange = judged.exchange
    is_known = refusal is None or refusal.reason.why is not Why.UNKNOWN
    if exchange is not None and exchange.tool is not None and is_known:
        exposed = editor.exposed(exchange.tool)
        exchange.exposed = exposed if exposed != exchange.tool else ""
    if refusal is None and judged.sent is None:
        return decision

    def answered(verdict: Verdict) -> Verdict:
        if isinstance(verdict, Reply):
            text = editor.refusal(verdict.text, verdict.reason.tools)
            return replace(verdict, text=text) if judged.sent else verdict
        # Only now: else the refusal would show that a hidden tool is there.
        return refusal if refusal and not isinstance(verdict, Drop) else verdict

    return then(decision, answered)


def edited(judged: Judged, editor: Editor, limits: Limits) -> Verdict:
    """Return the verdict with the names and definitions that its receiver knows."""
    verdict, message = judged.verdict, judged.message
    if isinstance(verdict, Drop) or message is None:
        return verdict
    is_for_upstream = judged.direction is Direction.FROM_CLIENT
    if isinstance(verdict, Forward):
        if is_for_upstream:
            if (sent := judged.sent) is None:
                return verdict
            if isinstance(sent, Batch):
                text = render_batch([one.place.raw for one in sent.members])
            else:
                text = sent.place.raw
            return Rewrite(text, Reason(Why.EDITED))
        each = message.members if isinstance(message, Batch) else (message,)
        raw = each[0].place.text.encode()
        text = editor.told(raw, judged.snapshot, limits)
        return verdict if text == raw else Rewrite(text, Reason(Why.EDITED))
    if is_for_upstream and isinstance(verdict, Rewrite):
        return verdict
    text = verdict.text
    if not is_for_upstream:
        text = editor.refusal(text, verdict.reason.tools)
    return replace(verdict, text=editor.told(text, judged.snapshot, limits))
