"""Method interceptors: the example of the specification, and a class of the user's own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from mcp_tool_filter.rooms.rules.interceptors import InterceptedExchange
from mcp_tool_filter.rooms.rules.policy import load_policy
from mcp_tool_filter.rooms.rules.subject import Circumstances
from tests.rooms.rules.judging import Host, call, error, judged, message_of, request, result, rules

SEED = "tests/rooms/rules/seed.yaml"


def test_the_example_of_the_specification_does_what_it_says(host: Host) -> None:
    policy = load_policy(Path(SEED).read_bytes())

    def answer(text: str) -> str | None:
        return message_of(judged(policy, text, host=host))

    assert answer(call("delete_file")) == "Tool 'delete_file' not allowed"
    assert answer(call("read_file")) is None
    for _ in range(10):
        assert answer(request("expensive/x")) is None
    assert answer(request("expensive/x")) == "Rate limit exceeded"
    assert answer(request("expensive/y")) is None
    assert answer(request("resources/read", {"uri": "file:///workspace/a"})) is None
    assert answer(request("resources/read", {"uri": "file:///etc/a"})) == "Resource not allowed"
    key = request("resources/subscribe", {"uri": "file:///tmp/a.KEY"})
    assert answer(key) == "Resource not allowed"
    assert len(judged(policy, request("tools/list"), host=host).stores) == 1
    calls = [answer(call("write_file")) for _ in range(61)]
    assert calls == [None] * 60 + ["Rate limit exceeded"]


def test_an_interceptor_names_the_method_as_the_rule(host: Host) -> None:
    config = "{allowed_tools: [a], rate_limit: {per_second: 1, per_hour: 2}}"
    call_of_a = f"{{tools/call: {{class: ToolCallInterceptor, config: {config}}}}}"
    policy = rules("", top=f"method_interceptors: {call_of_a}")

    def refusal(tool: str) -> object:
        found = judged(policy, call(tool), host=host).refusal
        return found and json.loads(found.data or "")

    assert refusal("b") == {"rule": "tools/call", "action": "block"}
    assert refusal("a") is None
    assert refusal("a") == {"rule": "tools/call", "action": "rate_limit", "retry_after": 1}
    host.now += 1
    assert refusal("a") is None
    host.now += 1
    limited = refusal("a")
    assert isinstance(limited, dict)
    assert limited["retry_after"] > 3000


class Guard:
    def __init__(self, config: dict[str, object]) -> None:
        self.secret = config["secret"]

    async def request(self, exchange: InterceptedExchange) -> object:
        await asyncio.sleep(0)
        count = exchange.session["count"] = int(str(exchange.session.get("count", 0))) + 1
        if count > 2:
            return "too many"
        params = exchange.message["params"]
        assert isinstance(params, dict)
        params["secret"] = self.secret
        return exchange.message

    def response(self, exchange: InterceptedExchange) -> object:
        assert exchange.request
        return f"no answer to {exchange.request['method']}"


def test_a_users_own_class_can_judge_a_method() -> None:
    class Sync(Guard):
        def request(self, exchange: InterceptedExchange) -> object:  # type: ignore[override]  # users may
            return asyncio.run(super().request(exchange))

    host = Host(objects={"m:Guard": Sync})
    top = "method_interceptors: {vendor/do: {class: 'm:Guard', config: {secret: [1]}}}"
    policy, about = rules("", host, top=top), Circumstances(session={})
    text = request("vendor/do", {"a": 1})
    found = judged(policy, text, host=host, about=about)
    assert json.loads(found.message.place.raw)["params"] == {"a": 1, "secret": [1]}
    judged(policy, text, host=host, about=about)
    assert message_of(judged(policy, text, host=host, about=about)) == "too many"
    answer = judged(policy, result({}), host=host, about=about, asked=text)
    assert message_of(answer) == "no answer to vendor/do"
    ours = Circumstances(session={}, is_own_error=True)
    answer = judged(policy, error(-32001, "no"), host=host, about=ours, asked=text)
    assert message_of(answer) is None
