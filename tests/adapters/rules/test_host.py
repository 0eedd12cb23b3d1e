"""The effects of rules, carried out: at once where possible."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.rules.host import RuleHost
from mcp_tool_filter.adapters.rules.state import StateInMemory
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    EffectFailed,
    Measure,
    ReadCache,
    RunScript,
    SendCopy,
    Warn,
    WriteCache,
    WriteLog,
)
from mcp_tool_filter.rules.chain import Later


def host() -> RuleHost:
    return RuleHost(StateInMemory())


def script_in_background(folder: Path, code: str) -> RunScript:
    file = folder / "script"
    file.write_text(f"#!{sys.executable}\n{code}\n")
    file.chmod(0o755)
    return RunScript((str(file),), (), b"", 20.0, False, "r")


def test_a_rules_log_line_is_logged_and_audited(caplog: pytest.LogCaptureFixture) -> None:
    ours = host()
    entered: list[WriteLog] = []
    ours.enter_log = entered.append
    said = WriteLog("warn", "look here", "r")
    ours.at_once(said)
    assert caplog.messages == ["Rule r: look here"]
    assert entered == [said]


def test_a_warning_is_given_once_until_the_rules_change(caplog: pytest.LogCaptureFixture) -> None:
    ours = host()
    ours.at_once(Warn("w"))
    ours.at_once(Warn("w"))
    assert caplog.messages == ["w"]
    ours.forget_warnings()
    ours.at_once(Warn("w"))
    assert caplog.messages == ["w", "w"]


def test_counters_add_up_and_their_number_is_bounded() -> None:
    ours = host()
    for number in range(2000):
        ours.at_once(Measure(f"m{number}", 1.0))
    ours.at_once(Measure("m0", 0.5))
    assert len(ours.metrics) == 1000
    assert ours.metrics["m0"] == 1.5


def test_webhooks_that_did_not_arrive_are_counted() -> None:
    ours = host()
    ours.at_once(Measure("m", 1.0))
    assert list(ours.counters()) == [("m", 1.0)]
    ours.webhooks.dropped, ours.webhooks.failed = 2, 3
    assert dict(ours.counters()) == {"m": 1.0, "webhooks dropped": 2.0, "webhooks failed": 3.0}


def test_the_cache_in_memory_answers_at_once() -> None:
    ours = host()
    ours.at_once(WriteCache("k", b"v", 60.0, "g", 10))
    assert ours.at_once(ReadCache("k", 1.0)) == b"v"


def test_a_copy_is_handed_to_the_sender() -> None:
    sent: list[SendCopy] = []
    copy = SendCopy("{", "}", None, None, "r")
    assert RuleHost(StateInMemory(), sent.append).at_once(copy) is None
    assert host().at_once(copy) is None
    assert sent == [copy]


async def test_a_function_that_may_block_is_called_elsewhere() -> None:
    async def waits(argument: object) -> object:
        await asyncio.sleep(0)
        return argument

    for function in (lambda argument: argument, waits):
        effect = CallPython(function, "given", 20.0)
        assert host().at_once(effect) is Later.LATER
        assert await host().carry_out(effect) == "given"


async def test_a_function_that_fails_or_takes_too_long_has_a_reason() -> None:
    with pytest.raises(EffectFailed, match="it raised ZeroDivisionError"):
        await host().carry_out(CallPython(lambda _: 1 / 0, None, 20.0))
    with pytest.raises(EffectFailed, match="it took too long"):
        await host().carry_out(CallPython(lambda _: asyncio.sleep(3600), None, 0.01))


async def test_a_script_that_fails_in_the_background_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = host()
    assert ours.at_once(script_in_background(tmp_path, "raise SystemExit(3)")) is None
    while not caplog.messages:
        await asyncio.sleep(0.01)
    assert caplog.messages == ["Rule 'r': run_script failed: the script ended with status 3"]
    await ours.close()
