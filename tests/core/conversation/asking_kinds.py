"""Clients of different kinds, and what their lists then show."""

from __future__ import annotations

from typing import Any

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import Arrival, Judged, PolicyInForce
from mcp_tool_filter.core.messages.limits import R2025_11_25
from mcp_tool_filter.core.messages.tool_requests import ListRequest
from mcp_tool_filter.core.policy.effects import Decision, Together, waits
from mcp_tool_filter.core.policy.situation import Client, Session
from mcp_tool_filter.core.policy.verdict import Forward, Verdict
from tests.make import answering, asking, at_once, text_of

LIST = asking("tools/list")


class Http(Arrival):
    """What an HTTP request says, in short."""

    can_list = True

    def compare(self, asks: ListRequest) -> tuple[bool, bool]:
        return True, True


def open_session(
    in_force: PolicyInForce,
    capabilities: str = "{}",
    revision: str = R2025_11_25,
    *,
    like_the_fetch: bool = True,
    who: str = "",
) -> Conversation:
    """Shake hands as a client with these capabilities; ``who`` is its credential."""
    session = Session(is_like_the_fetch=like_the_fetch and not who)
    between = Conversation(in_force, Client(session=session, credential=who))
    between.from_client(asking("initialize", params=f'{{"capabilities":{capabilities}}}'))
    between.from_upstream(answering(f'{{"protocolVersion":"{revision}"}}'))
    return between


def asked(by: Conversation, raw: bytes) -> Verdict:
    judged: Judged = at_once(by.from_client(raw, None, Http()))
    return judged.verdict


def finished(decision: Decision[Any], came: object = None) -> Any:
    """Go through all pauses in which others would be served; ``came`` is what it waits for."""
    while waits(decision):
        try:
            effect = decision.send(came)
        except StopIteration as made:
            return made.value
        several = effect.decisions if isinstance(effect, Together) else ()
        came = [finished(one) for one in several]
    return decision


def listed(by: Conversation, raw: bytes, id: str = "1") -> bytes:
    """Let the upstream list; return what the client gets."""
    assert asked(by, asking("tools/list", id=id)) == Forward()
    verdict = finished(by.from_upstream(raw)).verdict
    return raw if isinstance(verdict, Forward) else text_of(verdict)


CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
