"""Carry out each action: change the message, or yield an effect for the host."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mcp_tool_filter.policy.effects import Deciding, Delay
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    CountUse,
    EffectFailed,
    Identify,
    ReadCache,
    RunScript,
    ScriptResult,
)
from mcp_tool_filter.policy.rules.actions import (
    Action,
    Allow,
    Block,
    Cache,
    CallFunction,
    Fork,
    InjectError,
    JsonPatch,
    Log,
    MergePatch,
    Metric,
    RateLimit,
    Redact,
    RemoveField,
    Script,
    SetField,
    Wait,
    Webhook,
)
from mcp_tool_filter.policy.rules.edits import ImpossibleChange
from mcp_tool_filter.policy.rules.json_patch import apply_patch
from mcp_tool_filter.policy.rules.judgement import Refusal, StoreOrder, refuse
from mcp_tool_filter.policy.rules.python_values import changed_text, to_python
from mcp_tool_filter.policy.rules.rule import Rule
from mcp_tool_filter.policy.rules.run import Run, message_text
from mcp_tool_filter.policy.rules.subject import Subject
from mcp_tool_filter.policy.rules.tell import tell
from mcp_tool_filter.policy.rules.templates import JsonTemplate, Template
from mcp_tool_filter.protocol.messages import Request


def perform(run: Run, rule: Rule, action: Action) -> Deciding[None]:
    """Carry out an action. Raises if it fails."""
    match action:
        case Allow():
            run.allowed = True
        case Block(reason):
            run.refuse(refuse((yield from run.text(reason, rule.id)), rule.id, "block"))
        case InjectError(code, message, data):
            yield from _inject(run, rule, code, message, data)
        case Wait(seconds):
            before = run.clock()
            yield Delay(seconds)
            run.deadline += run.clock() - before
        case SetField(part, at, value):
            if run.subject.is_response == (part == "result"):
                written = yield from run.text(value, rule.id)
                run.edit(lambda edited: edited.set(at.steps, written))
        case RemoveField(at):
            if not run.subject.is_response:
                run.edit(lambda edited: edited.remove(at.steps))
        case MergePatch(patch):
            run.edit(lambda edited: edited.merge(patch))
        case JsonPatch(operations):
            run.edit(lambda edited: apply_patch(edited, operations))
        case Redact(where, pattern, replacement):
            steps = where.steps if where else ()
            instead = yield from run.text(replacement, rule.id)
            budget = run.subject.budget
            run.edit(lambda edited: edited.redact(steps, pattern, instead, budget))
        case CallFunction():
            yield from _call_function(run, action)
        case Script():
            yield from _run_script(run, rule, action)
        case Cache():
            yield from _look_up(run, rule, action)
        case RateLimit():
            yield from _count(run, rule, action)
        case Log() | Metric() | Webhook() | Fork():
            yield from tell(run, rule, action)


def _inject(
    run: Run, rule: Rule, code: int, message: Template, data: JsonTemplate | None
) -> Deciding[None]:
    text = yield from run.text(message, rule.id)
    more = None if data is None else (yield from run.text(data, rule.id))
    run.refuse(Refusal(code, text, more, rule.id, "inject_error"))


def _call_function(run: Run, action: CallFunction) -> Deciding[None]:
    subject = run.subject
    known = run.prefetched.get(id(action))
    if known and known[0] is subject:
        made = known[1]
    else:
        made = yield python_effect(run, action)
    if isinstance(made, EffectFailed):
        raise made
    _change(run, text_from_python(subject, made))


def _change(run: Run, text: str | None) -> None:
    """Take the message that a script or a callable made. If it is none, that is their mistake."""
    try:
        run.change(text)
    except ImpossibleChange as error:
        raise EffectFailed(str(error)) from None


def python_effect(run: Run, action: CallFunction) -> CallPython:
    return CallPython(action.function, to_python(message_text(run.subject)), run.left())


def text_from_python(subject: Subject, made: object) -> str | None:
    """Return the message that a callable returned, as text; None if nothing changed."""
    if made is None:
        return None
    if not isinstance(made, dict):
        raise EffectFailed(f"it returned {type(made).__name__}, not a dict or None")
    text = message_text(subject)
    try:
        changed = changed_text(text, made)
    except (TypeError, ValueError, RecursionError) as error:
        raise EffectFailed(f"it returned something that is not JSON: {error}") from None
    return None if changed == text else changed


def _run_script(run: Run, rule: Rule, action: Script) -> Deciding[None]:
    known = run.prefetched.get(id(action))
    if known and known[0] is run.subject:
        result = known[1]
    else:
        result = yield (yield from script_effect(run, rule, action))
    if not action.decides:
        return
    if isinstance(result, EffectFailed):
        raise result
    assert isinstance(result, ScriptResult)
    output = result.output
    if result.status == 1:
        reason = output.decode(errors="replace").removesuffix("\n").removesuffix("\r")
        run.refuse(refuse(reason or "Blocked by a script", rule.id, "block"))
    elif result.status != 0:
        raise EffectFailed(f"the script ended with status {result.status}")
    elif output.strip():
        try:
            text = output.decode().strip()
        except UnicodeDecodeError:
            raise EffectFailed("the script's output is not UTF-8") from None
        if text != message_text(run.subject).strip():
            _change(run, text)


def script_effect(run: Run, rule: Rule, action: Script) -> Deciding[RunScript]:
    args = []
    for one in action.args:
        args.append((yield from run.text(one, rule.id)).replace("\0", ""))  # noqa: PERF401 - a comprehension cannot yield from
    subject = run.subject
    environment = {
        "MCP_RULE": rule.id,
        "MCP_METHOD": subject.method or "",
        "MCP_TOOL": subject.tool or "",
        "MCP_SESSION_ID": subject.about.session_id,
    }
    timeout = min(action.timeout, run.left()) if action.decides else action.timeout
    return RunScript(
        (action.path, *args),
        tuple((name, value.replace("\0", "")) for name, value in environment.items()),
        message_text(subject).encode(),
        timeout,
        action.decides,
        rule.id,
    )


def _look_up(run: Run, rule: Rule, action: Cache) -> Deciding[None]:
    about, message = run.subject.about, run.subject.message
    if not isinstance(message, Request) or not about.from_client or about.is_answered:
        return
    if run.judgement.cached is not None:
        return
    who = yield from run.credential()
    text = yield from run.text(action.key, rule.id)
    asker = about.asker().decode("latin-1")
    key = _hashed("cache", about.upstream, about.revision, who, asker, text)
    found = yield ReadCache(key, run.left())
    if isinstance(found, bytes):
        run.judgement.cached = found
        return
    group = _hashed("group", about.upstream, rule.id)
    run.judgement.stores.append(StoreOrder(key, action.ttl, group, action.max_entries))


def _count(run: Run, rule: Rule, action: RateLimit) -> Deciding[None]:
    text = yield from run.text(action.key, rule.id)
    limits = ((action.limit, action.window),)
    key = ["limit", rule.id, text]
    if run.subject.about.operator:  # another operator's user is another one
        key.append(str((yield Identify(run.subject.about.operator))))
    yield from count_use(run, rule.id, key, limits)


def count_use(
    run: Run, rule: str, key: Sequence[str], limits: tuple[tuple[int, float], ...]
) -> Deciding[None]:
    """Count a use; refuse the message if it exceeds a limit."""
    retry_after = yield CountUse(_hashed(*key), limits, run.left())
    if isinstance(retry_after, int | float):
        text = "Rate limit exceeded"
        run.refuse(refuse(text, rule, "rate_limit", retry_after=retry_after))


def _hashed(*parts: str) -> str:
    """Return a key of fixed length that differs for different parts."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(raw)}:".encode() + raw)
    return f"{parts[0]}:{digest.hexdigest()}"
