"""The tool filter, the first link of the chain: decides which tools are listed and callable."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcp_tool_filter.core.messages.carried import requests_within
from mcp_tool_filter.core.messages.messages import (
    METHOD_NOT_FOUND,
    Batch,
    Notification,
    Request,
    Response,
    Single,
    parse_message,
    render_error,
)
from mcp_tool_filter.core.messages.methods import undefined_topic
from mcp_tool_filter.core.messages.scan import open_value
from mcp_tool_filter.core.messages.tool_requests import (
    ListRequest,
    ToolCall,
    parse_list_request,
    parse_tool_call,
)
from mcp_tool_filter.core.messages.tools import (
    HIDDEN_TOOL,
    Definition,
    Listing,
    ShowsHidden,
    find_listing,
    shows_tool,
)
from mcp_tool_filter.core.policy.snapshot import Snapshot, Standing, shown
from mcp_tool_filter.core.policy.taking import drift_of, listed_twice
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.situation import Situation


@dataclass(frozen=True, slots=True)
class Envelope:
    """The text around the tools in a revision's list result."""

    before: str
    after: str
    _clean_of: Collection[str] | None = field(default=None, init=False, compare=False, repr=False)
    """Names that it is known not to show: each list from the snapshot asks for the same ones."""

    def shows(self, hidden: Collection[str]) -> bool:
        """Tell whether it shows a tool of these names, which never change."""
        if self._clean_of is hidden:
            return False
        if shows_tool(f"{self.before}null{self.after}", hidden):
            return True
        object.__setattr__(self, "_clean_of", hidden)
        return False

    def around(self, tools: bytes, id: str) -> bytes:
        head = f'{{"jsonrpc":"2.0","id":{id},"result":{self.before}'
        return b"".join([head.encode(), tools, self.after.encode(), b"}"])


_REFS = frozenset({"ref/prompt", "ref/resource"})


def filter_from_client(message: Single, situation: Situation) -> Verdict:
    """Decide on a client's message, and on the requests in it, each as if it was sent alone.

    Raises ProtocolError if one cannot be judged.
    """
    verdict = _decide_alone(message, situation)
    if isinstance(message, Response) or message.params is None:
        return verdict
    if not isinstance(verdict, Forward | Rewrite):
        return verdict
    exchange = situation.exchange
    called = exchange.tool if exchange is not None else None
    for carried in requests_within(message):
        refused = _decide_alone(carried, situation)
        if not isinstance(refused, Forward):
            return refused
    if exchange is not None and called is not None:
        exchange.tool = called  # what the message itself calls
    return verdict


def _decide_alone(message: Single, situation: Situation) -> Verdict:
    match message:
        case Request(method="tools/call") | Notification(method="tools/call"):
            call, situation.call = situation.call or parse_tool_call(message), None
            if situation.exchange:
                situation.exchange.tool = call.tool_name
            return decide_call(call, situation.snapshot)
        case Request(method="tools/list"):
            request, situation.asks = situation.asks or parse_list_request(message), None
            if situation.exchange:
                situation.exchange.cursor = request.cursor
                situation.exchange.is_unusual |= not request.is_usual
            return decide_list(request, situation)
        case Request() | Notification():
            return _decide_other(message, situation)
        case Response():
            return Forward()


def _decide_other(message: Request | Notification, situation: Situation) -> Verdict:
    """Decide on a request that is not about tools, as far as we know."""
    if (topic := undefined_topic(message.method)) and _may_show_hidden(topic, situation):
        return _no_such_method(message)
    if _completes_anything_else(message) and _may_show_hidden("completion", situation):
        return _no_such_method(message)
    catalog = situation.catalog
    return catalog.decide_from_client(message, situation) if catalog else Forward()


def _may_show_hidden(topic: str, situation: Situation) -> bool:
    """Tell whether an answer about this could show something hidden."""
    catalog = situation.catalog
    hides_tools = topic in ("tools", "completion") and not situation.snapshot.choice.hides_nothing
    return hides_tools or (catalog is not None and catalog.hides(topic))


def _completes_anything_else(message: Request | Notification) -> bool:
    """Tell whether a message asks to complete what is neither a prompt nor a resource."""
    if message.method != "completion/complete" or message.params is None:
        return False
    ref = message.params.get("ref")
    members = (open_value(message.place.text, ref, {}).members or ()) if ref else ()
    types = [member.value.text for member in members if member.key == "type"]
    return len(types) > 1 or not _REFS.issuperset(types)


def _no_such_method(message: Request | Notification) -> Verdict:
    """Answer a method that no revision and no accepted extension defines: we cannot tell what it
    would show or run."""
    detail = f"a method that nobody has defined: {shown(message.method)}"
    reason = Reason(Why.UNKNOWN, detail=detail)
    if isinstance(message, Notification):
        return Drop(reason)
    return Reply(render_error(message.id, METHOD_NOT_FOUND, "Method not found"), reason)


def filter_from_upstream(
    message: Single, situation: Situation, *, is_ours: bool = False
) -> Verdict:
    """Decide on the upstream's message. Raises ProtocolError if it cannot be judged.

    ``is_ours`` marks a message that a link has changed on purpose.
    """
    verdict = _filter_tools(message, situation, is_ours=is_ours)
    if situation.catalog is None:
        return verdict
    if isinstance(verdict, Rewrite):
        changed = parse_message(verdict.text, situation.limits)
        message = message if isinstance(changed, Batch) else changed
    decided = situation.catalog.decide_from_upstream(message, situation)
    return verdict if isinstance(decided, Forward) else decided


def _filter_tools(message: Single, situation: Situation, *, is_ours: bool) -> Verdict:
    match message:
        case Request(method="sampling/createMessage"):
            return Forward()  # these tools are for the model, in this one request
        case Request() | Notification():
            return decide_listing(message, situation.snapshot, expected=False, is_ours=is_ours)
        case Response():
            asked = situation.exchange
            tool = asked.tool if asked is not None and asked.is_on_trust else None
            if tool is not None and _says_unknown(message, tool, situation):
                reason = Reason(Why.UNKNOWN, (tool,))
                return Rewrite(tool_not_found(message.id or "null", tool), reason)
            method = asked.method if asked is not None else "tools/list"
            expected = method == "tools/list"
            return decide_listing(message, situation.snapshot, expected=expected, is_ours=is_ours)


def decide_call(call: ToolCall, snapshot: Snapshot) -> Verdict:
    """Forward a call to an allowed tool; answer any other as if the tool did not exist."""
    standing = snapshot.standing(call.tool_name)
    if standing is Standing.ALLOWED:
        return Forward()
    why = Why.DENIED if standing is Standing.DENIED else Why.UNKNOWN
    reason = Reason(why, (call.tool_name,))
    if call.id is None:  # a notification: no client waits for an answer
        return Drop(reason)
    return Reply(tool_not_found(call.id, call.tool_name), reason)


def tool_not_found(id: str, name: str) -> bytes:
    return render_error(id, METHOD_NOT_FOUND, f"Tool not found: {shown(name)}")


_LONGEST_REFUSAL = 4096  # characters; servers say in one sentence that they have no such tool
_NO_METHOD = "Method not found"  # over stdio, where we did not ask for a list, it says no more
_UNKNOWN_TOOL = re.compile(
    r"\b(?:unknown|no such|invalid|unrecogni[sz]ed) tool\b"
    r"|\btool\b.{0,300}\b(?:not (?:be )?found|not exist|unknown|not registered|not available)\b",
    re.IGNORECASE | re.DOTALL,
)


def _says_unknown(answer: Response, name: str, situation: Situation) -> bool:
    """Tell whether the upstream says, in its own words, that it has no tool of this name.

    It gets our words instead: else these would tell an unknown tool from a denied one.
    """
    text = answer.place.text[answer.place.start : answer.place.end]
    if len(text) > _LONGEST_REFUSAL:
        return False
    try:
        said = json.loads(text)
    except ValueError:
        return False
    error, result = said.get("error"), said.get("result")
    if isinstance(error, dict):
        words = error.get("message")
        if error.get("code") == METHOD_NOT_FOUND:
            is_stdio = situation.client is not None and situation.client.via == "stdio"
            return not (is_stdio and words == _NO_METHOD)
        return isinstance(words, str) and bool(_UNKNOWN_TOOL.search(words))
    if not isinstance(result, dict) or result.get("isError") is not True:
        return False
    content = result.get("content")
    blocks = content if isinstance(content, list) else []
    parts = [block.get("text") for block in blocks if isinstance(block, dict)]
    words = " ".join(part for part in parts if isinstance(part, str))
    return name in words and bool(_UNKNOWN_TOOL.search(words))


def decide_list(request: ListRequest, situation: Situation) -> Verdict:
    """Answer from the snapshot if that is sound; else forward, and rewrite the answer later."""
    snapshot, envelope = situation.snapshot, situation.envelope
    if not situation.may_use_cache or request.has_cursor or envelope is None:
        return Forward()
    if envelope.shows(snapshot.never_shown):
        return Forward()  # it was learned before these patterns were in force
    return Reply(envelope.around(snapshot.allowed.tools, request.id), Reason(Why.CACHED))


def decide_listing(
    message: Single, snapshot: Snapshot, *, expected: bool = True, is_ours: bool = False
) -> Verdict:
    """Remove from a message every definition that the snapshot does not allow.

    Raises ProtocolError if one cannot be removed. If no list is ``expected``, a method may use a
    member ``tools`` in another way: then only entries with the name of a hidden tool go.
    ``is_ours`` marks a list that a rule has changed on purpose: its definitions of allowed tools
    stay.
    """
    listing = find_listing(message, snapshot.never_shown, expected=expected)
    if listing is None:
        return Forward()
    if not (expected or listing.has_definitions):
        return _without_hidden_names(listing, snapshot)
    return decide_listed(listing, snapshot, is_ours=is_ours)


def _without_hidden_names(listing: Listing, snapshot: Snapshot) -> Forward | Rewrite:
    """Remove entries that have the name of a hidden tool, and no definition.

    Without a description, only the names of listed tools count: others may be anything.
    """
    kept, hidden = list[bytes](), list[str]()
    for definition in listing.definitions:
        names = snapshot.never_shown if definition.is_described else snapshot.denied
        if definition.name is not None and definition.name in names:
            hidden.append(shown(definition.name))
        else:
            kept.append(definition.raw)
    if not hidden:
        return Forward()
    return Rewrite(listing.with_tools(kept), Reason(Why.HIDDEN, tuple(hidden)))


def decide_listed(
    listing: Listing, snapshot: Snapshot, *, is_ours: bool = False
) -> Forward | Rewrite:
    """Do the same for a list that has been read."""
    if shows_tool(listing.surroundings, snapshot.never_shown):
        raise ShowsHidden(HIDDEN_TOOL)
    drift: list[str] = []
    faults = frozenset(snapshot.faults)
    kept = dict(_kept(listing.definitions, snapshot, is_ours=is_ours))
    if not is_ours:
        drift += filter(
            None, (drift_of(definition, snapshot, faults) for definition in listing.definitions)
        )
    return _with_kept(listing, kept, drift)


def _with_kept(
    listing: Listing, kept: Mapping[str, bytes], drift: Iterable[str]
) -> Forward | Rewrite:
    if list(kept.values()) == [definition.raw for definition in listing.definitions]:
        return Forward()
    hidden = tuple(
        shown(definition.name or "?")
        for definition in listing.definitions
        if definition.name not in kept
    )
    drift = (*drift, *_duplicates_in(listing, kept))
    reason = Reason(Why.HIDDEN, hidden, drift=drift)
    return Rewrite(listing.with_tools(kept.values()), reason)


def _duplicates_in(listing: Listing, kept: Mapping[str, bytes]) -> Iterator[str]:
    """Yield a warning for each exposed tool that the upstream lists more than once."""
    names = Counter(
        definition.name for definition in listing.definitions if definition.problem is None
    )
    for name, count in names.items():
        if count > 1 and name is not None and name in kept:
            yield listed_twice(name)


def _kept(
    definitions: Iterable[Definition], snapshot: Snapshot, *, is_ours: bool
) -> Iterator[tuple[str, bytes]]:
    for definition in definitions:
        name = definition.name
        if (
            name is not None
            and definition.problem is None
            and snapshot.standing(name) is Standing.ALLOWED
        ):
            yield name, definition.raw if is_ours else snapshot.allowed[name]
