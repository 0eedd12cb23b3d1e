"""The actions of rules: how a rules file says each, and what it does.

``ACTIONS`` declares each of them once: the reader, the schema and what follows the rules derive
from it. What an action does is a function. It gets the run of a message through the rules, and the
action's values, with their templates expanded. It changes or refuses the message, or yields effects
for the host.

A new action is a row of the table, with its function. If it needs an effect of its own, declare
that beside it, as ``Outward`` if others notice it; ``RuleHost`` carries it out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mcp_tool_filter.core.errors import ProtocolError, printable
from mcp_tool_filter.core.messages.limits import HTTP_TOKEN
from mcp_tool_filter.core.messages.messages import Request
from mcp_tool_filter.core.messages.scan import Value, open_value
from mcp_tool_filter.core.policy.effects import Deciding, Delay
from mcp_tool_filter.rooms.rules import forms
from mcp_tool_filter.rooms.rules import rule_effects as effects
from mcp_tool_filter.rooms.rules.edits import (
    OPERATIONS,
    Edited,
    ImpossibleChange,
    Operation,
    apply_patch,
    changed_text,
    to_python,
)
from mcp_tool_filter.rooms.rules.fields import (
    Document,
    Field,
    Json,
    Key,
    Number,
    Object,
    PathStep,
    RulePattern,
    Token,
    find_member,
    parse_pointer,
    quote,
)
from mcp_tool_filter.rooms.rules.forms import Form, Schema, Spot, Term
from mcp_tool_filter.rooms.rules.subject import Refusal
from mcp_tool_filter.rooms.rules.templates import (
    Template,
    in_url,
    parse_template,
    split_url,
    templates_in,
)

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.rules.chain import Run


@dataclass(frozen=True, slots=True)
class ActionKind:
    """What an action of a rules file may be."""

    means: str
    """A sentence for people, who read it in the reference and in their editors."""
    example: str
    """A value of the form, in YAML."""
    form: Form[tuple[Any, ...]]
    do: Callable[..., Deciding[None] | None]
    """Does it at once, or returns a decision that may wait. Raises if it fails."""
    ask: Callable[..., effects.RunScript | effects.CallPython] | None = None
    """What to ask a program or a function first; ``do`` gets the answer, not the values."""
    part: str = ""
    """``params`` for an action on requests, ``result`` for one on responses."""
    is_for: Callable[[Run], bool] | None = None
    """Tells whether it does anything with a request; if not, its templates are not expanded."""
    ends: bool = False
    """True if no later rule is evaluated (with ``fail_fast``)."""
    tells: bool = False
    """True if it still runs after its own rule has refused the message."""
    changes: bool = False
    """True if it always changes the message."""
    charges: bool = False
    """True if it is done for each of the asker's credentials by itself, if it names them."""


@dataclass(frozen=True, slots=True)
class Action:
    """What a rule does with a message that it matches."""

    name: str
    kind: ActionKind
    args: tuple[Any, ...]
    names: frozenset[str]
    """The variables in its templates."""

    @property
    def is_of_response(self) -> bool:
        """True if it only makes sense for a response."""
        return self.kind.part == "result" or "result" in self.names

    @property
    def decides(self) -> bool:
        """True if it waits for the answer of a program or a function."""
        return self.kind.ask is not None and self.args[-1] is not False


# What they do


def _allow(run: Run) -> None:
    run.allowed = True


def _block(run: Run, reason: str) -> None:
    run.refuse(reason, "block")


def _inject_error(run: Run, code: int, message: str, data: str | None) -> None:
    run.refuse_with(Refusal(code, message, data, run.rule, "inject_error"))


def _delay(run: Run, seconds: float) -> Deciding[None]:
    before = run.watch.clock()
    yield Delay(seconds)
    run.deadline += run.watch.clock() - before


def _set_field(run: Run, field: Field, written: str) -> None:
    run.edit(lambda edited: edited.set(field.steps, written))


def _remove_param(run: Run, field: Field) -> None:
    run.edit(lambda edited: edited.remove(field.steps))


def _merge(run: Run, patch: Json) -> None:
    run.edit(lambda edited: edited.merge(patch))


def _patch(run: Run, operations: Sequence[Operation]) -> None:
    run.edit(lambda edited: apply_patch(edited, operations))


def _redact(run: Run, pattern: RulePattern, field: Field | None, instead: str) -> None:
    steps, budget = field.steps if field else (), run.subject.budget

    def redact(edited: Edited) -> Edited:
        return edited.redact(steps, pattern, instead, budget)

    run.edit(redact)


def _call(run: Run, function: Callable[..., object]) -> effects.CallPython:
    return effects.CallPython(function, to_python(run.subject.text), run.left())


def text_from_python(run: Run, made: object) -> str | None:
    """Return the message that a user's code has returned, as text; None if nothing changed."""
    if made is None:
        return None
    if not isinstance(made, dict):
        raise effects.EffectFailed(f"it returned {type(made).__name__}, not a dict or None")
    text = run.subject.text
    try:
        changed = changed_text(text, made)
    except (TypeError, ValueError, RecursionError) as error:
        why = f"it returned something that is not JSON: {error}"
        raise effects.EffectFailed(why) from None
    return None if changed == text else changed


def _take_from_python(run: Run, made: object) -> None:
    _take(run, text_from_python(run, made))


def _take(run: Run, text: str | None) -> None:
    """Take the message that an answer is. If it is none, that is not the sender's mistake."""
    if text is not None:
        try:
            run.change(text)
        except ImpossibleChange as error:
            raise effects.EffectFailed(str(error)) from None


def _log(run: Run, message: str, level: str) -> Deciding[None]:
    subject, session = run.subject, run.subject.about.session_id
    about = session, subject.method, subject.tool, subject.id
    yield effects.WriteLog(level, printable(message), run.rule, *about)


def _measure(_run: Run, name: str, value: str) -> Deciding[None]:
    """Raises ImpossibleChange for a negative number: counters only grow."""
    try:
        number = float(value)
    except ValueError:
        raise ImpossibleChange(f"{value!r} is not a number") from None
    if not 0 <= number < float("inf"):
        raise ImpossibleChange(f"a counter cannot grow by {value!r}")
    yield effects.Measure(name, number)


def _send_webhook(
    run: Run,
    url: str,
    include_message: bool,
    headers: Sequence[tuple[str, str]],
    timeout: float,
) -> Deciding[None]:
    subject, refusal = run.subject, run.outcome.refusal
    members = {
        "rule": quote(run.rule),
        "action": quote(refusal.action if refusal else "webhook"),
        "session": quote(subject.about.session_id),
        "method": quote(subject.method) if subject.method is not None else "null",
        "id": subject.id or "null",
        "tool": quote(subject.tool) if subject.tool is not None else "null",
    }
    if include_message:
        members["message"] = subject.text
    written = ",".join(f"{quote(name)}:{value}" for name, value in members.items())
    safe = tuple((name, printable(value)) for name, value in headers)
    yield effects.SendWebhook(url, safe, written, timeout, run.rule)


def _script(
    run: Run, path: str, args: Sequence[str], timeout: float, decides: bool
) -> effects.RunScript:
    subject = run.subject
    environment = {
        "MCP_RULE": run.rule,
        "MCP_METHOD": subject.method or "",
        "MCP_TOOL": subject.tool or "",
        "MCP_SESSION_ID": subject.about.session_id,
    }
    return effects.RunScript(
        (path, *(argument.replace("\0", "") for argument in args)),
        tuple((name, value.replace("\0", "")) for name, value in environment.items()),
        subject.text.encode(),
        min(timeout, run.left()) if decides else timeout,
        decides,
        run.rule,
    )


def _obey_script(run: Run, result: object) -> None:
    if not isinstance(result, effects.ScriptResult):
        return  # it runs in the background
    if result.status == 1:
        reason = result.output.decode(errors="replace").removesuffix("\n").removesuffix("\r")
        run.refuse(reason or "Blocked by a script", "block")
    elif result.status != 0:
        raise effects.EffectFailed(f"the script ended with status {result.status}")
    elif result.output.strip():
        try:
            text = result.output.decode().strip()
        except UnicodeDecodeError:
            raise effects.EffectFailed("the script's output is not UTF-8") from None
        _take(run, None if text == run.subject.text.strip() else text)


def _fork(run: Run, copies: int, to: str | None) -> Deciding[None]:
    request, about = run.subject.message, run.subject.about
    if isinstance(request, Request) and about.from_client:
        # The client asked for the progress of its own request only.
        text = Edited(run.subject.text, run.subject.look).remove(_PROGRESS).text
        id = Document(text).open(Value(0, len(text)))["id"]
        for _ in range(copies):
            yield effects.SendCopy(text[: id.start], text[id.end :], about.origin, to, run.rule)


def _may_be_cached(run: Run) -> bool:
    about, is_request = run.subject.about, isinstance(run.subject.message, Request)
    return is_request and about.from_client and not about.is_answered and not run.outcome.cached


def _cache(run: Run, key: str, ttl: float, max_entries: int) -> Deciding[None]:
    about = run.subject.about
    who = yield from run.credential()
    key = _hashed("cache", about.upstream, who, about.asker().decode("latin-1"), key)
    stored = yield effects.ReadCache(key, run.left())
    if isinstance(stored, bytes):
        run.outcome.cached = stored
        return
    group = _hashed("group", about.upstream, run.rule)
    run.outcome.stores.append(effects.WriteCache(key, b"", ttl, group, max_entries))


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


def _limit_rate(run: Run, key: str, limit: int, window: float) -> Deciding[None]:
    keys = ["limit", run.rule, key]
    if ours := run.subject.about.operator():  # another operator's user is another one
        keys.append(str((yield effects.Identify(ours))))
    yield from count_use(run, keys, ((limit, window),))


def count_use(
    run: Run, key: Sequence[str], limits: tuple[tuple[int, float], ...]
) -> Deciding[None]:
    """Count a use; refuse the message if it exceeds a limit."""
    retry_after = yield effects.CountUse(_hashed(*key), limits, run.left())
    if isinstance(retry_after, int | float):
        run.refuse("Rate limit exceeded", "rate_limit", retry_after=retry_after)


def _hashed(*parts: str) -> str:
    """Return a key of fixed length that differs for different parts."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(f"{len(raw)}:".encode() + raw)
    return f"{parts[0]}:{digest.hexdigest()}"


# Reading them

LONGEST_DELAY = 600.0
_PROGRESS = (Key("params"), Key("_meta"), Key("progressToken"))
LEVELS = ("debug", "info", "warn", "error")
_TOKEN = re.compile(f"{HTTP_TOKEN}+")
_FUNCTION_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_ORIGIN = re.compile(r"https?://[^/?#]+[/?#]")
_MOST = 1_000_000_000


def _read_allow(spot: Spot) -> tuple[()]:
    if spot.node.value not in (None, True) and spot.node.members != {}:
        spot.wrong("allow takes no value")
    return ()


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
    template = parse_template(text, in_url)
    start = template.parts[0] if template.parts else ""
    if isinstance(start, str) and not start.startswith(("http://", "https://")):
        raise ValueError("expected a URL that begins with http:// or https://")
    has_variables = len(template.parts) > 1 or not isinstance(start, str)
    if has_variables and not (isinstance(start, str) and _ORIGIN.match(start)):
        raise ValueError(
            "a variable may not choose the host: expected a URL such as https://host/${tool}"
        )
    split_url(str(start))  # as the sender will
    return template


def _read_headers(spot: Spot) -> tuple[tuple[str, Template], ...]:
    headers = []
    for name, value in spot.members():
        if not _TOKEN.fullmatch(name):
            value.wrong(f"{name!r} cannot be the name of a header")
        headers.append((name, forms.TEMPLATE.read(value)))
    return tuple(headers)


def _plain_url(text: str) -> str:
    try:
        split_url(text)
        usable = urlsplit(text).port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("expected a URL such as http://localhost:3001/mcp")
    return text


def _read_merge_patch(spot: Spot) -> Json:
    patch = spot.node.to_json()
    if not isinstance(patch, Object):
        spot.wrong(f"expected a mapping, not {spot.node.kind}")
    return patch


def _read_operation(spot: Spot) -> Operation:
    has_op = "op" in (spot.node.members or ())
    op = _OP.read(spot.inside("op")) if has_op else "test"
    needed = OPERATIONS[op] if has_op else ("path",)
    # RFC 6902: members that an operation does not define are ignored; a misspelt one is not.
    members = spot.table(
        ["op", *needed], [member for member in ("value", "from") if member not in needed]
    )
    return Operation(
        op,
        _POINTER.read(members["path"]),
        _POINTER.read(members["from"]) if "from" in needed else (),
        forms.ANY.read(members["value"]) if "value" in needed else None,
    )


def _steps(pointer: str) -> tuple[PathStep, ...]:
    return tuple(map(Token, parse_pointer(pointer)))


def _read_function(spot: Spot) -> object:
    def parse(name: str) -> object:
        if not _FUNCTION_NAME.fullmatch(name):
            raise ValueError("expected module:function")
        function = spot.machine.import_object(name)
        if not callable(function):
            raise ValueError(f"{name} cannot be called")
        return function

    return forms.parsed(parse, None, example="package.module:function").read(spot)


def _values(*values: object) -> tuple[object, ...]:
    return values


def _only(form: Form[Any]) -> Form[tuple[Any, ...]]:
    return form.made(_values)


def _action(name: str, kind: ActionKind) -> Form[Action]:
    def make(args: tuple[Any, ...]) -> Action:
        names = (template.names for template in templates_in(args))
        return Action(name, kind, args, frozenset[str]().union(*names))

    return kind.form.made(make)


_members = partial(forms.mapping, _values)
_SCRIPT = partial(forms.parsed, default="", example="./check.sh")
_PATH = Form(forms.TEXT.schema, lambda spot: _SCRIPT(spot.machine.find_script).read(spot))
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
_OPERATIONS = forms.listed(_OPERATION, "a list of operations")
_FUNCTION = Form({"type": "string", "description": "module:function"}, _read_function)
_MERGE_PATCH = Form({"type": "object"}, _read_merge_patch)
_ALLOW = ActionKind(
    "The message goes on, and no later rule is evaluated.",
    "true",
    Form({"enum": [None, True, {}]}, _read_allow),
    _allow,
    ends=True,
)
_COUNTED = Form({"type": ["number", "string"]}, _read_metric_value)
_HEADERS = Form({"type": "object", "additionalProperties": forms.TEXT.schema}, _read_headers)
_FIELD_AND_VALUE = _members({"field": forms.FIELD, "value": forms.JSON_TEMPLATE})
_ERROR = _members(
    {
        "code": forms.whole(-(2**31), 2**31 - 1),
        "message": forms.TEMPLATE,
        "data": (forms.JSON_TEMPLATE, None),
    }
)
_REDACTION = forms.mapping(
    lambda pattern, ignore_case, field, instead: (pattern(ignore_case), field, instead),
    {
        "pattern": forms.PATTERN_OF,
        "ignore_case": (forms.BOOLEAN, False),
        "field": (forms.FIELD, None),
        "with": (forms.TEMPLATE, Template(("***",))),
    },
)
_HOOK = _members(
    {
        "url": forms.parsed(_http_url, Template(()), example="https://host/path"),
        "include_message": (forms.BOOLEAN, False),
        "headers": (_HEADERS, ()),
        "timeout": (forms.TIMEOUT, 5.0),
    }
)
_RUN = _members(
    {
        "path": _PATH,
        "args": (forms.listed(forms.TEMPLATE), ()),
        "timeout": (forms.TIMEOUT, 5.0),
        "decides": (forms.BOOLEAN, False),
    }
)
_COPIES = _members(
    {
        "copies": (forms.whole(1, 100), 1),
        "to": (forms.parsed(_plain_url, "", example="https://host/mcp"), None),
    }
)
_STORED = _members(
    {
        "key": forms.TEMPLATE,
        "ttl": forms.TIMEOUT,
        "max_entries": (forms.whole(1, _MOST), 1000),
    }
)
_RATE = _members({"key": forms.TEMPLATE, "limit": forms.whole(0, _MOST), "window": forms.TIMEOUT})
_LINE = _members({"message": forms.TEMPLATE, "level": (forms.one_of(*LEVELS), "info")})
_COUNTER = _members({"name": forms.filled(), "value": (_COUNTED, Template(("1",)))})

_TRANSFORMS = {
    "merge_patch": ActionKind(
        "Changes the params or the result by a JSON merge patch (RFC 7396).",
        "{arguments: {dry_run: true}}",
        _only(_MERGE_PATCH),
        _merge,
        changes=True,
    ),
    "json_patch": ActionKind(
        "Changes the params or the result by a JSON patch (RFC 6902).",
        "[{op: replace, path: /arguments/branch, value: draft}]",
        _only(_OPERATIONS),
        _patch,
        changes=True,
    ),
    "python": ActionKind(
        "Calls a function with the message, a dict; it returns the changed message, or None.",
        "my_rules:mask",
        _only(_FUNCTION),
        _take_from_python,
        _call,
    ),
}
_KINDS: dict[str, ActionKind | dict[str, ActionKind]] = {
    "allow": _ALLOW,
    "block": ActionKind(
        "Refuses the message with this reason (error -32001).",
        "This tool is for people only",
        _only(forms.TEMPLATE),
        _block,
        ends=True,
    ),
    "inject_error": ActionKind(
        "Refuses the message with this error.",
        "{code: -32602, message: 'Give a ticket', data: {rule: '${rule}'}}",
        _ERROR,
        _inject_error,
        ends=True,
    ),
    "delay": ActionKind(
        "Holds the message for this time, at most 10 minutes.",
        "2s",
        _only(forms.duration(most=LONGEST_DELAY)),
        _delay,
    ),
    "set_param": ActionKind(
        "Sets a field of the params.",
        "{field: arguments.dry_run, value: true}",
        _FIELD_AND_VALUE,
        _set_field,
        part="params",
        changes=True,
    ),
    "remove_param": ActionKind(
        "Removes a field of the params.",
        "arguments.force",
        _only(forms.FIELD),
        _remove_param,
        part="params",
        changes=True,
    ),
    "set_result": ActionKind(
        "Sets a field of the result.",
        "{field: 'content[*].text', value: hidden}",
        _FIELD_AND_VALUE,
        _set_field,
        part="result",
        changes=True,
    ),
    "transform": _TRANSFORMS,
    "redact": ActionKind(
        "Replaces what the pattern matches: in one field, or in all texts of params, result or"
        " error.",
        "{pattern: 'sk-[A-Za-z0-9]+', with: '***'}",
        _REDACTION,
        _redact,
        changes=True,
    ),
    "log": ActionKind(
        "Writes a line to the log and to the audit log.",
        "{level: warn, message: '${tool} was called'}",
        _LINE,
        _log,
        tells=True,
    ),
    "metric": ActionKind(
        "Increases the counter of this name, by 1 if there is no value.",
        "{name: calls_of_push, value: 1}",
        _COUNTER,
        _measure,
        tells=True,
    ),
    "webhook": ActionKind(
        "Posts a JSON object to the URL, and never delays the message.",
        "{url: 'https://hooks.example/mcp', include_message: false, timeout: 5s}",
        _HOOK,
        _send_webhook,
        tells=True,
    ),
    "run_script": ActionKind(
        "Runs a program with the message on its stdin; with decides, its exit status lets the"
        " message pass (0) or blocks it (1).",
        "{path: ./check.sh, args: ['${tool}'], timeout: 5s, decides: true}",
        _RUN,
        _obey_script,
        _script,
    ),
    "fork": ActionKind(
        "Sends copies of the request to the upstream, or to another URL; their answers are"
        " dropped.",
        "{copies: 1, to: 'https://canary.example/mcp'}",
        _COPIES,
        _fork,
        part="params",
    ),
    "cache": ActionKind(
        "Answers with the result that is stored for this key, or stores the upstream's result.",
        "{key: '${tool}:${params_hash}', ttl: 5m, max_entries: 1000}",
        _STORED,
        _cache,
        part="params",
        is_for=_may_be_cached,
    ),
    "rate_limit": ActionKind(
        "Refuses a message that is over the limit for this key in the sliding window.",
        "{key: '${credential}', limit: 10, window: 1m}",
        _RATE,
        _limit_rate,
        charges=True,
    ),
}
"""What an action may be: what it means, how a file writes it, and what it does."""


def _term_of(name: str, kind: ActionKind | dict[str, ActionKind]) -> Term[Action]:
    """Return the term of an action, or of one that has several kinds, of which it names one."""
    if isinstance(kind, ActionKind):
        return Term(kind.means, kind.example, _action(name, kind))
    inner = {key: _term_of(name, inner_kind) for key, inner_kind in kind.items()}
    expected = f"one of {', '.join(kind)}"
    form: Form[Action] = Form(
        {"oneOf": forms.named_schemas(inner)},
        lambda spot: forms.named(spot, inner, name, expected) or _ALLOWING,
    )
    first, term = next(iter(inner.items()))
    return Term(f"One of {', '.join(kind)}.", f"{{{first}: {term.example}}}", form)


ACTIONS = {name: _term_of(name, kind) for name, kind in _KINDS.items()}
_ALLOWING = Action("allow", _ALLOW, (), frozenset())
"""Also what we read after a mistake. (The file is not used.)"""
SCHEMA: Schema = {"oneOf": [{"const": "allow"}, *forms.named_schemas(ACTIONS)]}


def _read_action(spot: Spot) -> Action:
    if spot.node.value == "allow":
        return _ALLOWING
    expected = 'one action, such as block: "reason"'
    return forms.named(spot, ACTIONS, "action", expected) or _ALLOWING


ACTION = Form({"$ref": "#/$defs/action"}, _read_action)


def described() -> Iterator[tuple[str, str, str]]:
    """Yield the name, the meaning and an example of each action; transform has several."""
    for name, kind in _KINDS.items():
        if isinstance(kind, ActionKind):
            yield name, kind.means, kind.example
        else:
            for key, inner_kind in kind.items():
                yield name, inner_kind.means, f"{{{key}: {inner_kind.example}}}"
