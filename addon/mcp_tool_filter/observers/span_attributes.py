"""The attributes of a request's span, by OpenTelemetry's conventions for MCP.

(https://opentelemetry.io/docs/specs/semconv/gen-ai/mcp/) They never contain arguments or results.
"""

from __future__ import annotations

import orjson

from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.observers.audit.words import pattern_of, subject_of, verdict_word
from mcp_tool_filter.policy.exchange import Via
from mcp_tool_filter.policy.snapshot import shown
from mcp_tool_filter.policy.verdict import Forward, Rewrite
from mcp_tool_filter.protocol.messages import Request, Response, id_value

_LONGEST = 256  # characters
_NAMES = {"tool": "gen_ai.tool.name", "prompt": "gen_ai.prompt.name", "uri": "mcp.resource.uri"}
_PROTOCOLS = {Via.HTTP: "http", Via.LEGACY_SSE: "http", Via.WEBSOCKET: "websocket"}


def name_of(request: Request, judged: Judged) -> str:
    """Return the span's name: the method, and the tool or prompt that it names.

    Without the tool if the call was refused: it may name anything, and backends index span names.
    """
    method = shown(request.method)
    is_sent = isinstance(judged.verdict, Forward | Rewrite)
    match subject_of(request):
        case ("tool" | "prompt", target) if target and is_sent:
            return f"{method} {target}"
        case _:
            return method


def attributes_of(request: Request, judged: Judged) -> dict[str, str]:
    """Return the attributes known when the request arrives."""
    client, subject = judged.client, subject_of(request)
    id = id_value(request.id)
    known = {
        "mcp.method.name": shown(request.method),
        "jsonrpc.request.id": None if id == "null" else shown(id.strip('"')),
        "mcp.session.id": _session(judged),
        "mcp.protocol.version": shown(client.revision) if client.revision else None,
        "network.transport": "pipe" if client.via is Via.STDIO else "tcp",
        "network.protocol.name": _PROTOCOLS.get(client.via),
        "gen_ai.operation.name": "execute_tool" if request.method == "tools/call" else None,
        "mcp_tool_filter.verdict": verdict_word(judged.verdict),
        "mcp_tool_filter.from": str(judged.direction),
        **({_NAMES[subject[0]]: subject[1]} if subject else {}),
    }
    if not isinstance(judged.verdict, Forward):
        reason = judged.verdict.reason
        known["mcp_tool_filter.why"] = reason.why.value
        known["mcp_tool_filter.rule"] = reason.rule or None
        known["mcp_tool_filter.pattern"] = pattern_of(reason, judged.snapshot)
    return {name: value[:_LONGEST] for name, value in known.items() if value}


def outcome_of(judged: Judged, response: Response) -> tuple[dict[str, str], str]:
    """Return the attributes known when the answer arrives, and the text of its error."""
    if not isinstance(judged.verdict, Forward):
        why = {"mcp_tool_filter.answer_why": judged.verdict.reason.why.value}
    else:
        why = {}
    if response.result is None:
        error, said = error_in(response.place.raw)
        return error | why, said
    failed = response.result.get("isError")
    if failed is not None and response.place.cut(failed) == "true":
        return {"error.type": "tool_error"} | why, ""
    return why, ""


def error_in(answer: bytes) -> tuple[dict[str, str], str]:
    """Return the attributes and the text of an error answer.

    >>> error_in(b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}')
    ({'error.type': '-32601', 'rpc.response.status_code': '-32601'}, 'no')
    """
    try:
        error = orjson.loads(answer or b"{}").get("error")
        code, said = str(error["code"]), str(error.get("message", ""))
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}, ""
    return {"error.type": code, "rpc.response.status_code": code}, shown(said)


def _session(judged: Judged) -> str | None:
    session = judged.client.session
    return shown(session.id) if session and session.id else None
