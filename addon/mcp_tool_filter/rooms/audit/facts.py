"""What an entry and a span tell of a message and a verdict: the subject, the reason, the client."""

from __future__ import annotations

import json
from contextlib import suppress

from mcp_tool_filter.core.errors import printable
from mcp_tool_filter.core.messages.messages import Notification, Request, Response
from mcp_tool_filter.core.messages.sizes import NAME
from mcp_tool_filter.core.policy.choice import is_locked
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.core.policy.verdict import TOOL, Forward, Reason, Verdict
from mcp_tool_filter.core.process.sentences import verdict_word
from mcp_tool_filter.core.process.statistics import is_tool_error

_LONGEST_NAME = 64  # characters of a client's name
_LONGEST_READ = 256 * 1024  # characters of what is only read for people
# orjson refuses honest messages: half a surrogate pair, and ids such as 1e400.
_UNREADABLE = (ValueError, AttributeError, TypeError, KeyError, RecursionError)

_SUBJECTS = {
    "tools/call": ("name", "tool"),
    "resources/read": ("uri", "uri"),
    "resources/subscribe": ("uri", "uri"),
    "resources/unsubscribe": ("uri", "uri"),
    "prompts/get": ("name", "prompt"),
    "skills/get": ("uri", "uri"),
}


def subject_of(message: Request | Notification) -> tuple[str, str] | None:
    """Return the kind and the name of what a message is about: a tool, a URI or a prompt.

    >>> from mcp_tool_filter.core.messages.messages import parse_message
    >>> subject_of(parse_message(b'{"jsonrpc":"2.0","id":1,"method":"prompts/get",'
    ...                          b'"params":{"name":"greet"}}'))
    ('prompt', 'greet')
    """
    found = _SUBJECTS.get(message.method)
    if found is None or message.params is None:
        return None
    member, kind = found
    value = message.params.get(member)
    if value is None or value.text is None:
        return None
    return kind, shown(value.text[:NAME])


def facts_about(verdict: Verdict, snapshot: Snapshot) -> dict[str, str]:
    """Return a verdict's word, and of its reason what there is: why, the rule, and the pattern or
    the flag that hides the tool."""
    facts = {"verdict": verdict_word(verdict)}
    if isinstance(verdict, Forward):
        return facts
    reason = verdict.reason
    facts["why"] = reason.why.value
    if reason.rule:
        facts["rule"] = reason.rule
    if pattern := denying_pattern(reason, snapshot):
        facts["pattern"] = pattern
    return facts


def denying_pattern(reason: Reason, snapshot: Snapshot) -> str | None:
    """Return the pattern or the flag that hides the called tool, or the thing that is asked for."""
    if reason.thing != TOOL:
        return reason.pattern or None
    found = map(snapshot.hiding, reason.tools)
    texts = (f"{by.text}: {by.says}" if is_locked(by) else by.text for by in found if by)
    return next(filter(None, texts), None)


def client_name_in(params: str) -> str:
    """Return the name that a client gives itself in the params of a request.

    >>> client_name_in('{"clientInfo":{"name":"my-client"}}')
    'my-client'
    >>> client_name_in('{"_meta":{"io.modelcontextprotocol/clientInfo":{"name":"my-client"}}}')
    'my-client'
    """
    if len(params) > _LONGEST_READ or "clientInfo" not in params:
        return ""
    try:
        said = json.loads(params)
        meta = said.get("_meta") or {}
        info = said.get("clientInfo") or meta["io.modelcontextprotocol/clientInfo"]
        name = info["name"]
    except _UNREADABLE:
        return ""
    return shown(name[:_LONGEST_NAME]) if isinstance(name, str) else ""


def error_in(answer: bytes) -> tuple[object, str]:
    """Return the code and the text of an error answer; None if it has none.

    >>> error_in(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}')
    (-32601, 'no')
    """
    code, said = _error_in(answer)
    return code, shown(said)


def _error_in(answer: bytes) -> tuple[object, str]:
    try:
        error = json.loads(answer)["error"]
        return error["code"], str(error.get("message", ""))
    except _UNREADABLE:
        return None, ""


def problem_in(response: Response) -> str:
    """Return the first line of the text of an error: the upstream's, or a tool's.

    >>> from mcp_tool_filter.core.messages.messages import parse_message
    >>> problem_in(parse_message(b'{"jsonrpc":"2.0","id":1,"result":{"isError":true,"content":['
    ...                          b'{"type":"text","text":"No such file"}]}}'))
    'No such file'
    """
    said = ""
    if response.result is None:
        said = _error_in(response.place.raw)[1]
    elif is_tool_error(response) and response.place.end <= _LONGEST_READ:
        with suppress(*_UNREADABLE):
            parts = json.loads(response.place.cut(response.result))["content"]
            texts = (str(part["text"]) for part in parts if part.get("type") == "text")
            said = next(texts, "")
    return printable(said.strip().partition("\n")[0][:NAME])
