"""The effects of rules, carried out: at once where possible, else on the event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from mcp_tool_filter.adapters.rules.host import Callables, OfflineHost, RuleHost, run_script
from mcp_tool_filter.adapters.rules.state import StateInMemory
from mcp_tool_filter.policy.effects import Delay
from mcp_tool_filter.policy.rule_effects import (
    CallPython,
    EffectFailed,
    Measure,
    RunScript,
    ScriptResult,
    TooLarge,
    Warn,
    WriteLog,
)
from mcp_tool_filter.rules.chain import Later
from tests.raw_upstream import TIMEOUT


def host() -> RuleHost:
    return RuleHost(StateInMemory())


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


async def test_a_function_that_may_block_is_called_elsewhere() -> None:
    async def waits(argument: object) -> object:
        await asyncio.sleep(0)
        return argument

    for function in (lambda argument: argument, waits):
        effect = CallPython(function, "given", 20.0)
        assert host().at_once(effect) is Later.LATER
        assert await host().carry_out(effect) == "given"
    with pytest.raises(EffectFailed, match="it took too long"):
        await host().carry_out(CallPython(lambda _: asyncio.sleep(3600), None, 0.5))


# Functions of users, which may hang for ever


async def test_functions_that_hang_do_not_keep_others_waiting() -> None:
    """Not even more of them than a pool of threads has."""
    ours, goes_on = Callables(), Event()
    hang = CallPython(lambda _: goes_on.wait(60), None, 0.01)
    came = await asyncio.gather(*(ours.call(hang) for _ in range(50)), return_exceptions=True)
    assert {str(one) for one in came} == {"it took too long"}
    assert await ours.call(CallPython(lambda argument: argument, "given", 20.0)) == "given"
    assert await asyncio.to_thread(str, 1) == "1"
    goes_on.set()


async def test_so_many_may_hang_and_no_more() -> None:
    ours, goes_on = Callables(most=1), Event()
    with pytest.raises(EffectFailed, match="it took too long"):
        await ours.call(CallPython(lambda _: goes_on.wait(60), None, 0.01))
    quick = CallPython(lambda _: "made", None, 20.0)
    with pytest.raises(EffectFailed, match="1 calls of users' functions have not returned"):
        await ours.call(quick)
    goes_on.set()
    async with asyncio.timeout(TIMEOUT):
        while ours._running:
            await asyncio.sleep(0.01)
    assert await ours.call(quick) == "made"


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt])
async def test_whatever_a_function_raises_is_a_failure(error: type[BaseException]) -> None:
    def raises(_: object) -> object:
        raise error

    with pytest.raises(EffectFailed, match=rf"it raised (RuntimeError|{error.__name__})"):
        await Callables().call(CallPython(raises, None, 20.0))


HANG = """
import asyncio, time
from mcp_tool_filter.adapters.rules.host import Callables
from mcp_tool_filter.policy.rule_effects import CallPython, EffectFailed
async def main():
    try:
        await Callables().call(CallPython(lambda _: time.sleep(3600), None, 0.01))
    except EffectFailed as error:
        print(error)
asyncio.run(main())
"""


def test_the_end_of_the_process_does_not_wait_for_a_function_that_hangs() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", HANG], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "it took too long\n"


# Scripts, run as child processes


def script(tmp_path: Path, code: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{code}\n")
    path.chmod(0o755)
    return str(path)


def effect(
    path: str, *args: str, timeout: float = 20.0, given: bytes = b"in", decides: bool = True
) -> RunScript:
    return RunScript((path, *args), (("MCP_RULE", "r"),), given, timeout, decides, "r")


async def run(path: str, *args: str, timeout: float = 20.0, given: bytes = b"in") -> ScriptResult:
    return await run_script(effect(path, *args, timeout=timeout, given=given), most_output=1000)


async def test_a_script_gets_the_message_arguments_and_environment(tmp_path: Path) -> None:
    path = script(tmp_path, "print(sys.stdin.read(), sys.argv[1], os.environ['MCP_RULE'])")
    assert await run(path, "$(rm -rf); a b") == ScriptResult(0, b"in $(rm -rf); a b r\n")


async def test_a_script_may_leave_its_input_unread(tmp_path: Path) -> None:
    path = script(tmp_path, "sys.exit(1)")
    assert (await run(path, given=b"x" * 5_000_000)).status == 1


async def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    note.touch()  # a second may be too short even for its start
    code = f"pid = os.fork()\nopen({str(note)!r}, 'a').write(f'{{os.getpid()}} ')\ntime.sleep(60)"
    with pytest.raises(EffectFailed, match="longer than 1s"):
        await run(script(tmp_path, code), timeout=1.0)
    assert not any(map(is_alive, note.read_text().split()))


def is_alive(pid: str) -> bool:
    """Tell whether a process runs; one that was killed is a zombie until init has buried it."""
    for _ in range(500):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("size", [1000, 1_000_000])
async def test_a_script_that_floods_is_ended(size: int, tmp_path: Path) -> None:
    """Also one that has filled all buffers before we stop to read."""
    flood = f"while True: os.write(1, b'x' * {size})"
    with pytest.raises(EffectFailed, match="more than 1000 bytes"):
        await run(script(tmp_path, flood))


async def test_ending_a_script_logs_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio warns if something else than itself took the exit status."""
    path = script(tmp_path, "time.sleep(60)")
    for _ in range(20):
        with pytest.raises(EffectFailed, match="took longer"):
            await run(path, timeout=0.05)
    assert caplog.messages == []


async def test_a_scripts_stderr_is_dropped(tmp_path: Path) -> None:
    """A flood of it neither fills a pipe, so that the script hangs, nor our own log."""
    code = "for _ in range(500): os.write(2, b'x' * 10000)\nprint('done')"
    assert await run(script(tmp_path, code)) == ScriptResult(0, b"done\n")


async def test_a_crashed_script_has_an_exit_status(tmp_path: Path) -> None:
    assert (await run(script(tmp_path, "os.kill(os.getpid(), 11)"))).status == -11


async def test_a_script_that_cannot_start_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(EffectFailed, match="cannot be started"):
        await run(str(tmp_path / "nothing"))


async def test_an_argument_that_the_system_does_not_take_is_the_senders_fault() -> None:
    """Linux takes at most 128 KB; ``on_error: allow`` must not let such a message pass."""
    with pytest.raises(TooLarge, match="too large for a script"):
        await run("/bin/true", "x" * 200_000)


async def test_a_script_that_fails_in_the_background_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = host()
    path = script(tmp_path, "raise SystemExit(3)")
    assert ours.at_once(effect(path, decides=False)) is None
    while not caplog.messages:
        await asyncio.sleep(0.01)
    assert caplog.messages == ["Rule 'r': run_script failed: the script ended with status 3"]
    await ours.close()


def test_a_replay_runs_only_scripts_that_decide_and_waits_for_nothing(tmp_path: Path) -> None:
    """The same holds for the tests of rules."""
    offline = OfflineHost(StateInMemory())
    assert offline.at_once(effect(script(tmp_path, "print('x')"))) == ScriptResult(0, b"x\n")
    quiet = script(tmp_path, "open(__file__ + '.ran', 'w')")
    assert offline.at_once(effect(quiet, decides=False)) is None
    assert not Path(f"{quiet}.ran").exists()
    assert offline.at_once(Delay(3600.0)) is None
