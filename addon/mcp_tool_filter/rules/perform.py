"""Carry out each action: change the message, or yield an effect for the host.

``Run`` is the state of one message on its way through the rules. When an action changes a part of
the message, the rest keeps its bytes, and the tool filter judges it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mcp_tool_filter.errors import ProtocolError, printable
from mcp_tool_filter.policy.effects import Deciding, Delay
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    CountUse,
    EffectFailed,
    Identify,
    Measure,
    ReadCache,
    RunScript,
    ScriptResult,
    SendCopy,
    SendWebhook,
    WriteLog,
)
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.messages import Batch, Request, Response, Single, parse_message
from mcp_tool_filter.protocol.scan import Value, open_value
from mcp_tool_filter.rules.actions import (
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
from mcp_tool_filter.rules.edits import (
    Edited,
    ImpossibleChange,
    apply_patch,
    changed_text,
    to_python,
)
from mcp_tool_filter.rules.fields import Document, Key, find_member, quote
from mcp_tool_filter.rules.policy import Rule
from mcp_tool_filter.rules.subject import (
    Refusal,
    RulesOutcome,
    StoreOrder,
    Subject,
    Watch,
    refuse,
)
from mcp_tool_filter.rules.templates import JsonTemplate, Template, in_url

type Edit = Callable[[Edited], Edited]


def edit_part(subject: Subject, part: str, edit: Edit) -> str | None:
    """Return the message's text with ``params`` or ``result`` edited; None if nothing changes.

    Missing params are created if the edit adds something to them. An error has no result and stays
    unchanged.
    """
    place = subject.message.place
    raw = place.text[place.start : place.end]
    value = subject.part(part)
    if value is None:
        if part == "result":
            return None
        made = edit(Edited("{}")).text
        return None if made == "{}" else Edited(raw).set([Key("params")], made).text
    written = place.text[value.start : value.end]
    changed = edit(Edited(written, subject.look)).text
    if changed == written:
        return None
    return raw[: value.start - place.start] + changed + raw[value.end - place.start :]


def replace_message(subject: Subject, text: str) -> tuple[Subject, Verdict]:
    """Return the changed message and the tool filter's verdict on it.

    Raises ImpossibleChange if it is not a message, or no longer the same request or response.
    """
    message = _parse(text, subject)
    try:
        verdict = subject.about.filter(message)
    except ProtocolError as error:
        raise ImpossibleChange(f"the changed message cannot be judged: {error}") from None
    match verdict:
        case Rewrite(rewritten):
            message = _parse(rewritten.decode(), subject)
        case Forward() | Reply() | Drop():
            pass
    request = subject.request if isinstance(message, Response) else None
    changed = Subject(message, subject.about, request, subject.budget)
    changed.watch = subject.watch
    return changed, verdict


def _parse(text: str, subject: Subject) -> Single:
    try:
        message = parse_message(text.encode(), subject.about.limits)
    except (ProtocolError, UnicodeEncodeError) as error:
        raise ImpossibleChange(f"the result is not a message: {error}") from None
    old = subject.message
    if isinstance(message, Batch) or type(message) is not type(old):
        raise ImpossibleChange("the result is another kind of message")
    if isinstance(message, Request | Response) and message.id != _id_of(old):
        raise ImpossibleChange("the result has another id")
    return message


def _id_of(message: Single) -> str | None:
    return message.id if isinstance(message, Request | Response) else None


type Clock = Callable[[], float]


@dataclass(slots=True)
class Run:
    """One message on its way through the rules."""

    subject: Subject
    clock: Clock
    deadline: float
    judgement: RulesOutcome
    watch: Watch
    allowed: bool = False
    """True after a rule has said ``allow``."""
    prefetched: dict[int, tuple[Subject, object]] = field(default_factory=dict)
    """Results of actions (by identity) that waited together, and the message they were for."""
    _credential: str | None = None

    def left(self) -> float:
        """Return how many seconds are left. Raises EffectFailed if there are none."""
        left = self.deadline - self.clock()
        if left <= 0:
            raise EffectFailed("the rules took too long")
        return left

    def credential(self) -> Deciding[str]:
        if self._credential is None:
            self._credential = str((yield Identify(self.subject.about.credentials)))
        return self._credential

    def text(
        self, template: Template | JsonTemplate, rule: str, write: Callable[[str], str] = str
    ) -> Deciding[str]:
        """Expand a template; ``write`` renders each inserted value."""
        several = template.templates if isinstance(template, JsonTemplate) else (template,)
        who = ""
        if any(one.asks_who for one in several):
            who = yield from self.credential()
        return template.render(self.subject, rule, who, write)

    def refuse(self, refusal: Refusal) -> None:
        """Refuse the message, unless it has been refused before."""
        if self.judgement.refusal is None:
            self.judgement.refusal = refusal

    def change(self, text: str | None) -> None:
        """Continue with a changed message; None changes nothing. Raises ImpossibleChange."""
        if text is None:
            return
        self.subject, verdict = replace_message(self.subject, text)
        self.judgement.message = self.subject.message
        self.judgement.is_changed = True
        self.judgement.filtered = verdict if _ends_chain(verdict) else None

    def edit(self, edit: Edit) -> None:
        part = "result" if self.subject.is_response else "params"
        self.change(edit_part(self.subject, part, edit))


def _ends_chain(verdict: Verdict) -> bool:
    """Tell whether the filter refuses a message. (A list answered from the snapshot continues.)"""
    return isinstance(verdict, Reply | Drop) and verdict.reason.why is not Why.CACHED


def message_text(subject: Subject) -> str:
    place = subject.message.place
    return place.text[place.start : place.end]


def may_be_kept(text: str, result: Value) -> bool:
    """Tell whether a result is final: no tool failed, and the upstream wants to know no more.

    What cannot be judged is not kept.
    """
    try:
        members = open_value(text, result).members or ()
        is_error = find_member(members, "isError")
        kind = find_member(members, "resultType")
    except ProtocolError:
        return False
    has_failed = is_error is not None and text[is_error.value.start : is_error.value.end] == "true"
    return not has_failed and (kind is None or kind.value.text == "complete")


def tell(run: Run, rule: Rule, action: Action) -> Deciding[None]:
    """Carry out an action that never waits and never changes the message."""
    match action:
        case Log(message, level):
            text = printable((yield from run.text(message, rule.id)))
            subject, session = run.subject, run.subject.about.session_id
            yield WriteLog(level, text, rule.id, session, subject.method, subject.tool, subject.id)
        case Metric(name, value):
            text = yield from run.text(value, rule.id)
            yield Measure(name, _countable(text))
        case Webhook():
            yield from _call_webhook(run, rule, action)
        case Fork(copies, to):
            request = run.subject.message
            if isinstance(request, Request) and run.subject.about.from_client:
                head, tail = _around_id(request)
                for _ in range(copies):
                    yield SendCopy(head, tail, run.subject.about.origin, to, rule.id)
        case _:
            pass


def _call_webhook(run: Run, rule: Rule, action: Webhook) -> Deciding[None]:
    url = yield from run.text(action.url, rule.id, in_url)
    headers = []
    for name, value in action.headers:
        text = yield from run.text(value, rule.id)
        headers.append((name, printable(text)))
    subject = run.subject
    refusal = run.judgement.refusal
    members = {
        "rule": quote(rule.id),
        "action": quote(refusal.action if refusal else "webhook"),
        "session": quote(subject.about.session_id),
        "method": quote(subject.method) if subject.method is not None else "null",
        "id": subject.id or "null",
        "tool": quote(subject.tool) if subject.tool is not None else "null",
    }
    if action.include_message:
        members["message"] = message_text(subject)
    written = ",".join(f"{quote(name)}:{value}" for name, value in members.items())
    yield SendWebhook(url, tuple(headers), written, action.timeout, rule.id)


def _around_id(message: Request) -> tuple[str, str]:
    place = message.place
    id = Document(place.text).open(Value(place.start, place.end))["id"]
    return place.text[place.start : id.start], place.text[id.end : place.end]


def _countable(text: str) -> float:
    """Return the increment of a counter.

    Raises ImpossibleChange if it is negative: counters only grow.
    """
    try:
        number = float(text)
    except ValueError:
        raise ImpossibleChange(f"{text!r} is not a number") from None
    if not 0 <= number < float("inf"):
        raise ImpossibleChange(f"a counter cannot grow by {text!r}")
    return number


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
