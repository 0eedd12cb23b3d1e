"""The actions of rules: how a rules file says each, and what it does.

``perform`` carries an action out: it changes or refuses the message, or yields an effect for the
host.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar
from urllib.parse import urlsplit

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
    WriteCache,
    WriteLog,
)
from mcp_tool_filter.protocol.messages import Request
from mcp_tool_filter.protocol.scan import Value, open_value
from mcp_tool_filter.rules import forms
from mcp_tool_filter.rules.edits import (
    OPERATIONS,
    ImpossibleChange,
    Operation,
    apply_patch,
    changed_text,
    to_python,
)
from mcp_tool_filter.rules.fields import (
    Document,
    Field,
    Json,
    Number,
    Object,
    PathStep,
    RulePattern,
    Token,
    find_member,
    parse_pointer,
    quote,
)
from mcp_tool_filter.rules.forms import Form, Schema, Spot
from mcp_tool_filter.rules.subject import Refusal, Run, Subject
from mcp_tool_filter.rules.templates import JsonTemplate, Template, in_url, parse_template


class Action:
    """What a rule does with a message that it matches."""

    __slots__ = ()
    ends: ClassVar[bool] = False
    """True if no later rule is evaluated (with ``fail_fast``)."""
    tells: ClassVar[bool] = False
    """True if it still runs after its own rule has refused the message."""
    changes: ClassVar[bool] = False
    """True if it always changes the message."""
    part: ClassVar[str | None] = None
    """``params`` for an action on requests, ``result`` for one on responses."""

    def perform(self, run: Run, rule: str) -> Deciding[None] | None:
        """Do it at once, or return a decision that may wait. Raises if it fails."""
        raise NotImplementedError


class Asks(Action):
    """An action that asks a program or a function, and may wait for the answer."""

    __slots__ = ()
    decides: bool
    """True if it waits for the answer."""

    def effect(self, run: Run, rule: str) -> Deciding[RunScript | CallPython]:
        raise NotImplementedError

    def answer(self, run: Run, rule: str) -> Deciding[object]:
        """Return the answer, unless it has come already. Raises EffectFailed."""
        known = run.prefetched.get(id(self))
        if known and known[0] is run.subject:
            answer = known[1]
        else:
            answer = yield (yield from self.effect(run, rule))
        if isinstance(answer, EffectFailed):
            raise answer
        return answer

    def take(self, run: Run, text: str | None) -> None:
        """Take the message that the answer is. If it is none, that is not the sender's mistake."""
        if text is not None:
            try:
                run.change(text)
            except ImpossibleChange as error:
                raise EffectFailed(str(error)) from None


@dataclass(frozen=True, slots=True)
class Allow(Action):
    ends: ClassVar = True

    def perform(self, run: Run, rule: str) -> None:
        run.allowed = True


@dataclass(frozen=True, slots=True)
class Block(Action):
    reason: Template
    ends: ClassVar = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        run.refuse((yield from run.text(self.reason, rule)), rule, "block")


@dataclass(frozen=True, slots=True)
class InjectError(Action):
    code: int
    message: Template
    data: JsonTemplate | None
    ends: ClassVar = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        text = yield from run.text(self.message, rule)
        data = None if self.data is None else (yield from run.text(self.data, rule))
        run.refuse_with(Refusal(self.code, text, data, rule, "inject_error"))


@dataclass(frozen=True, slots=True)
class Wait(Action):
    seconds: float

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        before = run.watch.clock()
        yield Delay(self.seconds)
        run.deadline += run.watch.clock() - before


@dataclass(frozen=True, slots=True)
class SetField(Action):
    field: Field
    value: JsonTemplate
    changes: ClassVar = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        if run.subject.is_response == (self.part == "result"):
            written = yield from run.text(self.value, rule)
            run.edit(lambda edited: edited.set(self.field.steps, written))


class SetParam(SetField):
    part: ClassVar = "params"


class SetResult(SetField):
    part: ClassVar = "result"


@dataclass(frozen=True, slots=True)
class RemoveParam(Action):
    field: Field
    changes: ClassVar = True
    part: ClassVar = "params"

    def perform(self, run: Run, rule: str) -> None:
        if not run.subject.is_response:
            run.edit(lambda edited: edited.remove(self.field.steps))


@dataclass(frozen=True, slots=True)
class MergePatch(Action):
    patch: Json
    changes: ClassVar = True

    def perform(self, run: Run, rule: str) -> None:
        run.edit(lambda edited: edited.merge(self.patch))


@dataclass(frozen=True, slots=True)
class JsonPatch(Action):
    operations: tuple[Operation, ...]
    changes: ClassVar = True

    def perform(self, run: Run, rule: str) -> None:
        run.edit(lambda edited: apply_patch(edited, self.operations))


@dataclass(frozen=True, slots=True)
class CallFunction(Asks):
    name: str
    function: Callable[..., object]
    decides: bool = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        answer = yield from self.answer(run, rule)
        self.take(run, text_from_python(run.subject, answer))

    def effect(self, run: Run, rule: str) -> Deciding[CallPython]:
        yield from ()
        return CallPython(self.function, to_python(run.subject.text), run.left())


def text_from_python(subject: Subject, made: object) -> str | None:
    """Return the message that a user's code has returned, as text; None if nothing changed."""
    if made is None:
        return None
    if not isinstance(made, dict):
        raise EffectFailed(f"it returned {type(made).__name__}, not a dict or None")
    try:
        changed = changed_text(subject.text, made)
    except (TypeError, ValueError, RecursionError) as error:
        raise EffectFailed(f"it returned something that is not JSON: {error}") from None
    return None if changed == subject.text else changed


@dataclass(frozen=True, slots=True)
class Redact(Action):
    field: Field | None
    pattern: RulePattern
    replacement: Template
    changes: ClassVar = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        steps = self.field.steps if self.field else ()
        instead = yield from run.text(self.replacement, rule)
        budget = run.subject.budget
        run.edit(lambda edited: edited.redact(steps, self.pattern, instead, budget))


@dataclass(frozen=True, slots=True)
class Log(Action):
    message: Template
    level: str
    tells: ClassVar = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        text = printable((yield from run.text(self.message, rule)))
        subject, session = run.subject, run.subject.about.session_id
        yield WriteLog(self.level, text, rule, session, subject.method, subject.tool, subject.id)


@dataclass(frozen=True, slots=True)
class Metric(Action):
    name: str
    value: Template
    tells: ClassVar = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        """Raises ImpossibleChange for a negative number: counters only grow."""
        text = yield from run.text(self.value, rule)
        try:
            number = float(text)
        except ValueError:
            raise ImpossibleChange(f"{text!r} is not a number") from None
        if not 0 <= number < float("inf"):
            raise ImpossibleChange(f"a counter cannot grow by {text!r}")
        yield Measure(self.name, number)


@dataclass(frozen=True, slots=True)
class Webhook(Action):
    url: Template
    include_message: bool
    headers: tuple[tuple[str, Template], ...]
    timeout: float
    tells: ClassVar = True

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        url = yield from run.text(self.url, rule, in_url)
        headers = []
        for name, value in self.headers:
            text = yield from run.text(value, rule)
            headers.append((name, printable(text)))
        subject, refusal = run.subject, run.judgement.refusal
        members = {
            "rule": quote(rule),
            "action": quote(refusal.action if refusal else "webhook"),
            "session": quote(subject.about.session_id),
            "method": quote(subject.method) if subject.method is not None else "null",
            "id": subject.id or "null",
            "tool": quote(subject.tool) if subject.tool is not None else "null",
        }
        if self.include_message:
            members["message"] = subject.text
        written = ",".join(f"{quote(name)}:{value}" for name, value in members.items())
        yield SendWebhook(url, tuple(headers), written, self.timeout, rule)


@dataclass(frozen=True, slots=True)
class Script(Asks):
    path: str
    args: tuple[Template, ...]
    timeout: float
    decides: bool

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        result = yield from self.answer(run, rule)
        if not self.decides:
            return
        assert isinstance(result, ScriptResult)
        if result.status == 1:
            reason = result.output.decode(errors="replace").removesuffix("\n").removesuffix("\r")
            run.refuse(reason or "Blocked by a script", rule, "block")
        elif result.status != 0:
            raise EffectFailed(f"the script ended with status {result.status}")
        elif result.output.strip():
            try:
                text = result.output.decode().strip()
            except UnicodeDecodeError:
                raise EffectFailed("the script's output is not UTF-8") from None
            self.take(run, None if text == run.subject.text.strip() else text)

    def effect(self, run: Run, rule: str) -> Deciding[RunScript]:
        args = []
        for one in self.args:
            args.append((yield from run.text(one, rule)).replace("\0", ""))  # noqa: PERF401 - a comprehension cannot yield from
        subject = run.subject
        environment = {
            "MCP_RULE": rule,
            "MCP_METHOD": subject.method or "",
            "MCP_TOOL": subject.tool or "",
            "MCP_SESSION_ID": subject.about.session_id,
        }
        return RunScript(
            (self.path, *args),
            tuple((name, value.replace("\0", "")) for name, value in environment.items()),
            subject.text.encode(),
            min(self.timeout, run.left()) if self.decides else self.timeout,
            self.decides,
            rule,
        )


@dataclass(frozen=True, slots=True)
class Fork(Action):
    copies: int
    to: str | None
    part: ClassVar = "params"

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        request, about = run.subject.message, run.subject.about
        if isinstance(request, Request) and about.from_client:
            place = request.place
            id = Document(place.text).open(Value(place.start, place.end))["id"]
            head, tail = place.text[place.start : id.start], place.text[id.end : place.end]
            for _ in range(self.copies):
                yield SendCopy(head, tail, about.origin, self.to, rule)


@dataclass(frozen=True, slots=True)
class Cache(Action):
    key: Template
    ttl: float
    max_entries: int
    part: ClassVar = "params"

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        about, message = run.subject.about, run.subject.message
        if not isinstance(message, Request) or not about.from_client or about.is_answered:
            return
        if run.judgement.cached is not None:
            return
        who = yield from run.credential()
        text = yield from run.text(self.key, rule)
        asker = about.asker().decode("latin-1")
        key = _hashed("cache", about.upstream, who, asker, text)
        found = yield ReadCache(key, run.left())
        if isinstance(found, bytes):
            run.judgement.cached = found
            return
        group = _hashed("group", about.upstream, rule)
        run.judgement.stores.append(WriteCache(key, b"", self.ttl, group, self.max_entries))


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


@dataclass(frozen=True, slots=True)
class RateLimit(Action):
    key: Template
    limit: int
    window: float

    def perform(self, run: Run, rule: str) -> Deciding[None]:
        text = yield from run.text(self.key, rule)
        key = ["limit", rule, text]
        if ours := run.subject.about.operator():  # another operator's user is another one
            key.append(str((yield Identify(ours))))
        yield from count_use(run, rule, key, ((self.limit, self.window),))


def count_use(
    run: Run, rule: str, key: Sequence[str], limits: tuple[tuple[int, float], ...]
) -> Deciding[None]:
    """Count a use; refuse the message if it exceeds a limit."""
    retry_after = yield CountUse(_hashed(*key), limits, run.left())
    if isinstance(retry_after, int | float):
        run.refuse("Rate limit exceeded", rule, "rate_limit", retry_after=retry_after)


def _hashed(*parts: str) -> str:
    """Return a key of fixed length that differs for different parts."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(raw)}:".encode() + raw)
    return f"{parts[0]}:{digest.hexdigest()}"


def templates_in(action: Action) -> Iterator[Template | JsonTemplate]:
    for value in (getattr(action, one) for one in getattr(action, "__dataclass_fields__", ())):
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if isinstance(part, tuple):
                part = part[-1]  # a header's value
            if isinstance(part, Template | JsonTemplate):
                yield part


def is_of_response(action: Action) -> bool:
    """Tell whether an action only makes sense for a response."""
    return action.part == "result" or any("result" in one.names for one in templates_in(action))


# Reading them

LONGEST_DELAY = 600.0
LEVELS = ("debug", "info", "warn", "error")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ORIGIN = re.compile(r"https?://[^/?#]+[/?#]")
_MOST = 1_000_000_000
_NOTHING: Action = Allow()
"""What we read after a mistake. (The file is not used.)"""


def _read_allow(spot: Spot) -> Action:
    if spot.node.value not in (None, True) and spot.node.members != {}:
        spot.wrong("allow takes no value")
    return Allow()


def _read_metric_value(spot: Spot) -> Template:
    if isinstance(spot.node.value, Number):
        value = float(spot.node.value.text)
        if value < 0:
            spot.wrong("expected a number that is not negative: counters only grow")
        elif value == float("inf"):
            spot.wrong("expected a smaller number")
        return Template((spot.node.value.text,))
    return forms.TEMPLATE.read(spot)


def _http_url(text: str) -> Template:
    template = parse_template(text)
    start = template.parts[0] if template.parts else ""
    if isinstance(start, str) and not start.startswith(("http://", "https://")):
        raise ValueError("expected a URL that begins with http:// or https://")
    has_variables = len(template.parts) > 1 or not isinstance(start, str)
    if has_variables and not (isinstance(start, str) and _ORIGIN.match(start)):
        raise ValueError(
            "a variable may not choose the host: expected a URL such as https://host/${tool}"
        )
    return template


def _read_headers(spot: Spot) -> tuple[tuple[str, Template], ...]:
    headers = []
    for name, one in spot.members():
        if not _TOKEN.fullmatch(name):
            one.wrong(f"{name!r} cannot be the name of a header")
        headers.append((name, forms.TEMPLATE.read(one)))
    return tuple(headers)


def _plain_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("expected a URL such as http://localhost:3001/mcp")
    return text


def _read_merge_patch(spot: Spot) -> Action:
    patch = spot.node.to_json()
    if not isinstance(patch, Object):
        spot.wrong(f"expected a mapping, not {spot.node.kind}")
    return MergePatch(patch)


def _read_operation(spot: Spot) -> Operation:
    has_op = "op" in (spot.node.members or ())
    op = _OP.read(spot.inside("op")) if has_op else "test"
    needed = OPERATIONS[op] if has_op else ("path",)
    # RFC 6902: members that an operation does not define are ignored; a misspelt one is not.
    found = spot.table(["op", *needed], [one for one in ("value", "from") if one not in needed])
    return Operation(
        op,
        _POINTER.read(found["path"]),
        _POINTER.read(found["from"]) if "from" in needed else (),
        forms.ANY.read(found["value"]) if "value" in needed else None,
    )


def _steps(pointer: str) -> tuple[PathStep, ...]:
    return tuple(map(Token, parse_pointer(pointer)))


def _read_function(spot: Spot) -> Action:
    def parse(name: str) -> Action:
        if not _FUNCTION.fullmatch(name):
            raise ValueError("expected module:function")
        function = spot.machine.import_object(name)
        if not callable(function):
            raise ValueError(f"{name} cannot be called")
        return CallFunction(name, function)

    return forms.parsed(parse, _NOTHING, example="package.module:function").read(spot)


_SCRIPT = partial(forms.parsed, default="", example="./check.sh")
_NO_STEPS: tuple[PathStep, ...] = ()
_OP = forms.one_of(*OPERATIONS)
_POINTER = forms.parsed(_steps, _NO_STEPS, example="/name")
_OPERATION = Form(
    forms.object_schema(
        {"op": _OP.schema, "path": forms.TEXT.schema},
        {"from": forms.TEXT.schema, "value": forms.ANY.schema},
    ),
    _read_operation,
)
_TRANSFORMS: dict[str, Form[Action]] = {
    "merge_patch": Form({"type": "object"}, _read_merge_patch),
    "json_patch": forms.listed(_OPERATION, "a list of operations").made(JsonPatch),
    "python": Form({"type": "string", "description": "module:function"}, _read_function),
}


def _read_transform(spot: Spot) -> Action:
    expected = f"one of {', '.join(_TRANSFORMS)}"
    return forms.named(spot, _TRANSFORMS, "transform", expected) or _NOTHING


_FIELD_AND_VALUE = {"field": forms.FIELD, "value": forms.JSON_TEMPLATE}

ACTIONS: dict[str, Form[Action]] = {
    "allow": Form({"enum": [None, True, {}]}, _read_allow),
    "block": forms.TEMPLATE.made(Block),
    "inject_error": forms.mapping(
        InjectError,
        {"code": forms.whole(-(2**31), 2**31 - 1), "message": forms.TEMPLATE},
        {"data": (forms.JSON_TEMPLATE, None)},
    ),
    "delay": forms.duration(most=LONGEST_DELAY).made(Wait),
    "set_param": forms.mapping(SetParam, _FIELD_AND_VALUE),
    "remove_param": forms.FIELD.made(RemoveParam),
    "set_result": forms.mapping(SetResult, _FIELD_AND_VALUE),
    "transform": Form({"oneOf": forms.named_schemas(_TRANSFORMS)}, _read_transform),
    "redact": forms.mapping(
        lambda pattern, ignore_case, field, instead: Redact(field, pattern(ignore_case), instead),
        {"pattern": forms.PATTERN_OF},
        {
            "ignore_case": (forms.BOOLEAN, False),
            "field": (forms.FIELD, None),
            "with": (forms.TEMPLATE, Template(("***",))),
        },
    ),
    "log": forms.mapping(
        Log, {"message": forms.TEMPLATE}, {"level": (forms.one_of(*LEVELS), "info")}
    ),
    "metric": forms.mapping(
        Metric,
        {"name": forms.filled()},
        {"value": (Form({"type": ["number", "string"]}, _read_metric_value), Template(("1",)))},
    ),
    "webhook": forms.mapping(
        Webhook,
        {"url": forms.parsed(_http_url, Template(()), example="https://host/path")},
        {
            "include_message": (forms.BOOLEAN, False),
            "headers": (
                Form({"type": "object", "additionalProperties": forms.TEXT.schema}, _read_headers),
                (),
            ),
            "timeout": (forms.TIMEOUT, 5.0),
        },
    ),
    "run_script": forms.mapping(
        Script,
        {
            "path": Form(
                forms.TEXT.schema, lambda spot: _SCRIPT(spot.machine.find_script).read(spot)
            )
        },
        {
            "args": (forms.listed(forms.TEMPLATE), ()),
            "timeout": (forms.TIMEOUT, 5.0),
            "decides": (forms.BOOLEAN, False),
        },
    ),
    "fork": forms.mapping(
        Fork,
        {},
        {
            "copies": (forms.whole(1, 100), 1),
            "to": (forms.parsed(_plain_url, "", example="https://host/mcp"), None),
        },
    ),
    "cache": forms.mapping(
        Cache,
        {"key": forms.TEMPLATE, "ttl": forms.TIMEOUT},
        {"max_entries": (forms.whole(1, _MOST), 1000)},
    ),
    "rate_limit": forms.mapping(
        RateLimit, {"key": forms.TEMPLATE, "limit": forms.whole(0, _MOST), "window": forms.TIMEOUT}
    ),
}
"""What an action may be, and how a file writes it."""

SCHEMA: Schema = {"oneOf": [{"const": "allow"}, *forms.named_schemas(ACTIONS)]}


def _read_action(spot: Spot) -> tuple[str, Action] | None:
    """Read an action and its name; None after a mistake."""
    if spot.node.value == "allow":
        return "allow", Allow()
    action = forms.named(spot, ACTIONS, "action", 'one action, such as block: "reason"')
    return None if action is None else (next(iter(spot.node.members or ())), action)


NAMED = Form({"$ref": "#/$defs/action"}, _read_action)
"""An action with its name."""
