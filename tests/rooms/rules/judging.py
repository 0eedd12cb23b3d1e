"""Judges messages by a policy, with a host that lives in memory."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from mcp_tool_filter.core.messages.messages import Batch, Response, Single, parse_message
from mcp_tool_filter.core.policy.effects import Deciding, Decision, Delay, Effect, Together, waits
from mcp_tool_filter.core.policy.verdict import Verdict
from mcp_tool_filter.rooms.rules import rule_effects as orders
from mcp_tool_filter.rooms.rules.chain import answered, judge
from mcp_tool_filter.rooms.rules.forms import Machine
from mcp_tool_filter.rooms.rules.policy import Policy, load_policy
from mcp_tool_filter.rooms.rules.state import StateInMemory
from mcp_tool_filter.rooms.rules.subject import (
    Circumstances,
    Evaluated,
    Refusal,
    RulesOutcome,
    Subject,
)


@dataclass
class Host(Machine):
    """Carries out effects at once, and remembers which there were."""

    now: float = 1000.0
    scripts: Mapping[str, orders.ScriptResult | orders.EffectFailed] = field(default_factory=dict)
    objects: Mapping[str, object] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory, self.apart = (StateInMemory(self.clock) for _ in range(2))

    def clock(self) -> float:
        return self.now

    def at_once(self, effect: Effect) -> object:
        self.effects.append(effect)
        match effect:
            case orders.Identify() | orders.CountUse() | orders.ReadCache() | orders.WriteCache():
                return self.memory.at_once(effect)
            case orders.Locally(evaluated):
                return self.apart.at_once(evaluated)
            case Delay(seconds):
                self.now += seconds
            case orders.RunScript(command, decides=True):
                result = self.scripts[command[0]]
                if isinstance(result, orders.EffectFailed):
                    raise result
                return result
            case orders.CallPython(function, argument):
                return self._call(function, argument)
            case Together(decisions):
                return [finish(one, self) for one in decisions]
        return None

    def _call(self, function: Callable[..., object], argument: object) -> object:
        try:
            made = function(argument)
            if inspect.iscoroutine(made):
                try:
                    made.send(None)
                except StopIteration as end:
                    return end.value
        except Exception as error:
            raise orders.EffectFailed(f"it raised {type(error).__name__}") from None
        return made

    # As a machine

    def import_object(self, name: str) -> object:
        if name not in self.objects:
            raise ValueError(f"there is no {name}")
        return self.objects[name]

    def find_script(self, path: str) -> str:
        return path


def finish[Outcome](deciding: Deciding[Outcome], host: Host) -> Outcome:
    try:
        next(answered(deciding, host.at_once))
    except StopIteration as made:
        outcome: Outcome = made.value
        return outcome
    raise AssertionError("it still waits")


def settled(decision: Decision[Any], host: Host) -> Any:
    """Return what was decided, at once or in the end."""
    return finish(decision, host) if waits(decision) else decision


def rules(text: str, host: Host | None = None, *, top: str = "") -> Policy:
    """Read a policy with these rules (a YAML list), and other keys of ``interceptor``."""
    body = "\n  rules:\n" + indent(text, "    ") if text else ""
    return load_policy(f"interceptor:\n{indent(top, '  ')}{body}".encode(), machine=host)


def rule(conditions: str, actions: str, host: Host | None = None, *, top: str = "") -> Policy:
    """Read a policy with one rule; both are YAML's flow lists without their brackets."""
    return rules(f"- {{id: r, conditions: [{conditions}], actions: [{actions}]}}", host, top=top)


def call(name: str = "read", /, id: object = 1, **arguments: object) -> str:
    return request("tools/call", {"name": name, "arguments": arguments}, id)


def request(method: str = "vendor/do", params: object = None, id: object = 1) -> str:
    more = {} if params is None else {"params": params}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, **more})


def result(value: object, id: object = 1) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "result": value})


def error(code: int, message: str, id: object = 1) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def single(text: str) -> Single:
    message = parse_message(text.encode())
    assert not isinstance(message, Batch)
    return message


def judged(
    policy: Policy,
    text: str,
    *,
    host: Host | None = None,
    asked: str | None = None,
    about: Circumstances | None = None,
    trace: list[Evaluated] | None = None,
) -> RulesOutcome:
    """Judge a message; ``asked`` is the request that a response answers."""
    host = host or Host()
    message = single(text)
    answers = single(asked) if asked else None
    assert not isinstance(answers, Response)
    subject = Subject(message, about or Circumstances(), answers)
    return finish(judge(policy, subject, host.clock, trace), host)


def refusal(policy: Policy, text: str, host: Host | None = None, **more: Any) -> Refusal:
    """Return how the rules refuse a message."""
    found = judged(policy, text, host=host, **more).refusal
    assert found is not None
    return found


def fails(policy: Policy, text: str, host: Host | None = None, **more: Any) -> bool:
    """Tell whether a message is refused because an action failed."""
    return refusal(policy, text, host, **more).action == "error"


def verdict(policy: Policy, text: str, host: Host | None = None) -> Verdict:
    return judged(policy, text, host=host).to_verdict()


def matches(policy: Policy, text: str, asked: str | None = None) -> bool:
    """Tell whether the only rule matches."""
    found = judged(policy, text, asked=asked)
    assert found.refusal is None or found.refusal.code == -32001, "it cannot be judged"
    return found.matched == ["r"]


def is_unclear(policy: Policy, text: str, asked: str | None = None) -> bool:
    """Tell whether a message is refused because a field cannot be judged."""
    found = judged(policy, text, asked=asked)
    return found.refusal is not None and found.refusal.code == -32600


def changed(policy: Policy, text: str, host: Host | None = None, asked: str | None = None) -> str:
    """Return the message as the rules left it."""
    found = judged(policy, text, host=host, asked=asked)
    assert found.refusal is None, found.refusal
    return found.message.place.raw.decode()


def logged(host: Host) -> list[str]:
    return [one.message for one in host.effects if isinstance(one, orders.WriteLog)]


def message_of(found: object) -> str | None:
    return getattr(getattr(found, "refusal", None), "message", None)
