"""Ask for an asker's list before a call is decided: when that is needed, and what holds without it.

A client may call a tool before it has listed any. What it may call depends on its own list, which
we may not know yet: ``needs_list`` tells whether the call must wait until we have asked for it, and
``without_list`` by what it is judged if we cannot.
"""

from __future__ import annotations

from dataclasses import replace
from unicodedata import is_normalized

from mcp_tool_filter.core.conversation.kinds import Kind
from mcp_tool_filter.core.conversation.policy_in_force import (
    LOST_ANSWER,
    Arrival,
    Judged,
    PolicyInForce,
)
from mcp_tool_filter.core.messages.messages import (
    UPSTREAM_LOST,
    Notification,
    Request,
    Response,
    Single,
    render_error,
)
from mcp_tool_filter.core.messages.tool_requests import (
    ToolCall,
    parse_list_request,
    parse_tool_call,
)
from mcp_tool_filter.core.policy.effects import CannotList
from mcp_tool_filter.core.policy.situation import Client, Situation, Via
from mcp_tool_filter.core.policy.snapshot import Snapshot, Standing
from mcp_tool_filter.core.policy.taking import UnlistedTools
from mcp_tool_filter.core.policy.verdict import Drop, Reason, Reply, Verdict, Why

_REFUSED = -32001  # as SDKs say that they know no such session
_ASK_AGAIN = 60.0  # seconds after an upstream has not listed its tools


def needs_list(
    message: Single, kind: Kind, situation: Situation, arrival: Arrival, policy: PolicyInForce
) -> bool:
    """Tell whether we need the asker's list: to know whether the called tool exists, or as what
    it gets if it asks in an unusual way for a list that then must not be pinned.

    A denied name waits for the list as an unknown one does: both get the same answer in the
    same time. Only in the older transport it does not: there some upstreams never answer. Over
    stdio we ask only if nothing but the tool's definition can decide.
    """
    if not kind.lacks_list:
        return False
    client = situation.client or Client()
    if isinstance(message, Request) and message.method == "tools/list":
        passes = kind.is_listed or client.via is Via.STDIO
        return not (passes or parse_list_request(message).is_usual)
    if isinstance(message, Response) or message.method != "tools/call":
        return False
    situation.call = parse_tool_call(message)
    return _needs_list_for(situation.call.tool_name, kind, client, arrival, policy)


def _needs_list_for(
    name: str, kind: Kind, client: Client, arrival: Arrival, policy: PolicyInForce
) -> bool:
    if kind.is_listed:  # an approved tool may have changed since
        is_allowed = kind.snapshot.standing(name) is Standing.ALLOWED
        return is_allowed and not policy.config.shadow
    if client.via is Via.STDIO:
        return kind.snapshot.is_undecided(name) and not policy.config.shadow
    if kind.snapshot.is_undecided(name):
        return True
    is_older = client.via is Via.LEGACY_SSE
    if is_older and kind.snapshot.standing(name) is Standing.DENIED:
        return False
    if client.revision is not None:
        return True
    # A client that states no revision has no session that needs one: the upstream usually
    # refuses it. Elsewhere than at the endpoint a denied name is refused unasked.
    start = policy.kinds.start
    if not arrival.is_endpoint and start.snapshot.standing(name) is Standing.DENIED:
        return False
    if not start.is_listed:
        return arrival.is_endpoint
    return name not in start.snapshot.allowed


def without_list(
    policy: PolicyInForce,
    kind: Kind,
    judged: Judged,
    call: ToolCall | None,
    error: Exception | None = None,
) -> Snapshot:
    """Return the snapshot to judge a call by if we cannot fetch its asker's list.

    If the asker is nobody else than our own fetch was, it has no other tools than that saw.
    Else the patterns alone judge: the asker may have tools of its own, and calls them with good
    reason. A name with spaces or invisible characters, which some upstreams drop, or that
    is denied in other case, is unknown.
    If the upstream refuses the asker, its own answer to the call says why, such as where to log
    in.
    """
    is_refusal = isinstance(error, CannotList) and error.is_refusal
    is_lost = isinstance(error, CannotList) and error.is_lost
    if error is not None and not is_refusal and not is_lost:
        # The next calls should not wait in vain, too.
        kind.unlisted_until = policy.clock() + _ASK_AGAIN
    if kind.is_listed:  # a lock pins the tools, but they may have changed
        has_failed = policy.clock() < kind.unlisted_until or error is not None
        return UnlistedTools(kind.snapshot.choice).snapshot if has_failed else kind.snapshot
    start = policy.kinds.start
    is_known = start.is_listed and not judged.client.who and not is_refusal
    snapshot = start.snapshot if is_known and not kind.is_listed else kind.snapshot
    if judged.exchange is not None:
        judged.exchange.is_on_trust = snapshot.is_open
    if call is None or not snapshot.is_open:
        return snapshot
    name = call.tool_name
    is_plain = _is_plain(name) and not snapshot.choice.hides_in_any_case(name)
    return snapshot if is_plain else replace(snapshot, is_open=False)


def refused_as_upstream(
    error: Exception, message: Single, call: ToolCall | None, snapshot: Snapshot
) -> Verdict | None:
    """Refuse a call as the upstream has refused the list that would decide about it.

    Without the definition we cannot forward the call; but "not found" would hide from a client
    that its session has ended, or its token, or that the upstream is lost.
    """
    if not isinstance(error, CannotList) or not (error.answer or error.is_lost):
        return None
    assert isinstance(message, Request | Notification)
    if call is None or not snapshot.is_undecided(call.tool_name):
        return None
    name = call.tool_name
    if error.is_lost:
        reason = Reason(Why.LOST, (name,), detail="the upstream is lost")
        code, text = UPSTREAM_LOST, LOST_ANSWER
    else:
        detail = "the upstream refuses the client"
        reason = Reason(Why.UNKNOWN, (name,), detail=detail, by_upstream=error.answer)
        code, text = _REFUSED, "Unknown session or credentials"
    if isinstance(message, Notification):
        return Drop(reason)
    return Reply(render_error(message.id, code, text), reason)


def _is_plain(name: str) -> bool:
    """Tell whether no upstream would take this name for another one."""
    return name.isprintable() and " " not in name and is_normalized("NFKC", name)
