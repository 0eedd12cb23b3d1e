"""The effects of rules, carried out: at once where possible, else on the event loop."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from mcp_tool_filter.core.policy.effects import Delay
from mcp_tool_filter.rooms.rules import rule_effects as orders
from mcp_tool_filter.rooms.rules.callables import Callables
from mcp_tool_filter.rooms.rules.chain import Later
from mcp_tool_filter.rooms.rules.copies import Copies, with_usual
from mcp_tool_filter.rooms.rules.host import OfflineHost, RuleHost
from mcp_tool_filter.rooms.rules.scripts import run_script
from mcp_tool_filter.rooms.rules.state import StateInMemory
from mcp_tool_filter.rooms.rules.webhooks import Webhooks
from tests.raw_upstream import Peer, RawUpstream, always, answer, free_port, raw_upstream, until


@pytest.fixture
def ours() -> RuleHost:
    return RuleHost(StateInMemory())


def test_a_log_line_is_logged_and_audited(ours: RuleHost, caplog: pytest.LogCaptureFixture) -> None:
    entered: list[orders.WriteLog] = []
    ours.enter_log = entered.append
    said = orders.WriteLog("warn", "look here", "r")
    ours.at_once(said)
    assert caplog.messages == ["Rule r: look here"]
    assert entered == [said]


def test_the_same_warning_is_given_once(ours: RuleHost, caplog: pytest.LogCaptureFixture) -> None:
    """Until the rules change."""
    ours.at_once(orders.Warn("w"))
    ours.at_once(orders.Warn("w"))
    assert caplog.messages == ["w"]
    ours.forget_warnings()
    ours.at_once(orders.Warn("w"))
    assert caplog.messages == ["w", "w"]


def test_counters_add_up_and_their_number_is_bounded(ours: RuleHost) -> None:
    for number in range(2000):
        ours.at_once(orders.Measure(f"m{number}", 1.0))
    ours.at_once(orders.Measure("m0", 0.5))
    assert len(ours.metrics) == 1000
    assert ours.metrics["m0"] == 1.5


def test_webhooks_that_did_not_arrive_are_counted(ours: RuleHost) -> None:
    ours.at_once(orders.Measure("m", 1.0))
    assert list(ours.counters()) == [("m", 1.0)]
    ours.webhooks.dropped, ours.webhooks.failed = 2, 3
    assert dict(ours.counters()) == {"m": 1.0, "webhooks dropped": 2.0, "webhooks failed": 3.0}


async def test_a_function_that_may_block_is_called_elsewhere(ours: RuleHost) -> None:
    async def waits(argument: object) -> object:
        await asyncio.sleep(0)
        return argument

    for function in (lambda argument: argument, waits):
        effect = orders.CallPython(function, "given", 20.0)
        assert ours.at_once(effect) is Later.LATER
        assert await ours.carry_out(effect) == "given"
    with pytest.raises(orders.EffectFailed, match="it took too long"):
        await ours.carry_out(orders.CallPython(lambda _: asyncio.sleep(3600), None, 0.5))


# Functions of users, which may hang for ever


async def test_functions_that_hang_do_not_keep_others_waiting() -> None:
    """Not even more of them than a pool of threads has."""
    ours, goes_on = Callables(), Event()
    hang = orders.CallPython(lambda _: goes_on.wait(60), None, 0.01)
    came = await asyncio.gather(*(ours.call(hang) for _ in range(50)), return_exceptions=True)
    assert {str(one) for one in came} == {"it took too long"}
    assert await ours.call(orders.CallPython(lambda argument: argument, "given", 20.0)) == "given"
    assert await asyncio.to_thread(str, 1) == "1"
    goes_on.set()


async def test_so_many_may_hang_and_no_more() -> None:
    ours, goes_on = Callables(most=1), Event()
    with pytest.raises(orders.EffectFailed, match="it took too long"):
        await ours.call(orders.CallPython(lambda _: goes_on.wait(60), None, 0.01))
    quick = orders.CallPython(lambda _: "made", None, 20.0)
    with pytest.raises(orders.EffectFailed, match="1 calls of users' functions have not returned"):
        await ours.call(quick)
    goes_on.set()
    await until(lambda: not ours._running)
    assert await ours.call(quick) == "made"


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt])
async def test_whatever_a_function_raises_is_a_failure(error: type[BaseException]) -> None:
    def raises(_: object) -> object:
        raise error

    with pytest.raises(orders.EffectFailed, match=rf"it raised (RuntimeError|{error.__name__})"):
        await Callables().call(orders.CallPython(raises, None, 20.0))


HANG = """
import asyncio, time
from mcp_tool_filter.rooms.rules.callables import Callables
from mcp_tool_filter.rooms.rules.rule_effects import CallPython, EffectFailed
async def main():
    try:
        await Callables().call(CallPython(lambda _: time.sleep(3600), None, 0.01))
    except EffectFailed as error:
        print(error)
asyncio.run(main())
"""


def test_the_end_of_the_process_does_not_wait_for_a_function_that_hangs() -> None:
    printed = subprocess.check_output([sys.executable, "-c", HANG], text=True, timeout=60)
    assert printed == "it took too long\n"


# Scripts, run as child processes


def script(tmp_path: Path, code: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{code}\n")
    path.chmod(0o755)
    return str(path)


USUAL = orders.RunScript((), (("MCP_RULE", "r"),), b"in", 20.0, True, "r")


async def run(path: str, *args: str, **other: Any) -> orders.ScriptResult:
    return await run_script(replace(USUAL, command=(path, *args), **other), most_output=1000)


async def test_a_script_gets_the_message_arguments_and_environment(tmp_path: Path) -> None:
    path = script(tmp_path, "print(sys.stdin.read(), sys.argv[1], os.environ['MCP_RULE'])")
    assert await run(path, "$(rm -rf); a b") == orders.ScriptResult(0, b"in $(rm -rf); a b r\n")


async def test_a_script_may_leave_its_input_unread(tmp_path: Path) -> None:
    path = script(tmp_path, "sys.exit(1)")
    assert (await run(path, input=b"x" * 5_000_000)).status == 1


async def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    note.touch()  # a second may be too short even for its start
    code = f"pid = os.fork()\nopen({str(note)!r}, 'a').write(f'{{os.getpid()}} ')\ntime.sleep(60)"
    with pytest.raises(orders.EffectFailed, match="longer than 1s"):
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
    with pytest.raises(orders.EffectFailed, match="more than 1000 bytes"):
        await run(script(tmp_path, flood))


async def test_ending_scripts_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio warns if something else than itself took the exit status."""
    path = script(tmp_path, "time.sleep(60)")
    for _ in range(20):
        with pytest.raises(orders.EffectFailed, match="took longer"):
            await run(path, timeout=0.05)
    assert caplog.messages == []


async def test_a_scripts_stderr_is_dropped(tmp_path: Path) -> None:
    """A flood of it neither fills a pipe, so that the script hangs, nor our own log."""
    code = "for _ in range(500): os.write(2, b'x' * 10000)\nprint('done')"
    assert await run(script(tmp_path, code)) == orders.ScriptResult(0, b"done\n")


async def test_a_crashed_script_has_an_exit_status(tmp_path: Path) -> None:
    assert (await run(script(tmp_path, "os.kill(os.getpid(), 11)"))).status == -11


async def test_a_script_that_cannot_start_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(orders.EffectFailed, match="cannot be started"):
        await run(str(tmp_path / "nothing"))


async def test_an_argument_that_the_system_does_not_take_is_the_senders_fault() -> None:
    """Linux takes at most 128 KB; ``on_error: allow`` must not let such a message pass."""
    with pytest.raises(orders.TooLarge, match="too large for a script"):
        await run("/bin/true", "x" * 200_000)


async def test_a_script_that_fails_in_the_background_is_reported(
    ours: RuleHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails = replace(USUAL, command=(script(tmp_path, "raise SystemExit(3)"),), decides=False)
    assert ours.at_once(fails) is None
    await until(lambda: caplog.messages)
    assert caplog.messages == ["Rule 'r': run_script failed: the script ended with status 3"]
    await ours.close()


def test_a_replay_runs_only_scripts_that_decide_and_waits_for_nothing(tmp_path: Path) -> None:
    """The same holds for the tests of rules."""
    offline = OfflineHost(StateInMemory())
    ran = replace(USUAL, command=(script(tmp_path, "print('x')\nopen(__file__ + '.ran', 'x')"),))
    assert offline.at_once(ran) == orders.ScriptResult(0, b"x\n")
    (tmp_path / "script.py.ran").unlink()
    assert offline.at_once(replace(ran, decides=False)) is None
    assert not (tmp_path / "script.py.ran").exists()
    assert offline.at_once(Delay(3600.0)) is None


# Copies of requests: they have our own ids, and their answers are dropped

COPY = orders.SendCopy('{"jsonrpc":"2.0","id":', ',"method":"ping"}', None, None, "fork")


async def test_each_copy_has_an_id_of_its_own() -> None:
    sent: list[bytes] = []
    copies = Copies(lambda text, _effect: sent.append(text))
    copies.send(COPY)
    copies.send(COPY)
    ids = [json.loads(one)["id"] for one in sent]
    assert ids == [f"{copies.id_prefix}1", f"{copies.id_prefix}2"]
    assert Copies(lambda *_: None).id_prefix != copies.id_prefix


async def test_a_copy_for_another_server_is_posted_there() -> None:
    async with raw_upstream(always(answer(b"{}"))) as upstream:
        copies = Copies(lambda *_: pytest.fail("it is for another server"))
        copies.send(replace(COPY, to=f"{upstream.url}/copies"))
        await upstream.asked(1)
    [request] = upstream.requests
    assert request.line == "POST /copies HTTP/1.1"
    assert request.all("content-type") == ["application/json"]
    assert json.loads(request.body)["method"] == "ping"


async def test_an_unreachable_server_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    copies = Copies(lambda *_: None)
    copies.send(replace(COPY, to=f"http://127.0.0.1:{free_port()}/"))
    await until(lambda: caplog.messages)
    assert "was not delivered: Connection refused" in caplog.messages[0]


async def test_copies_beyond_the_limit_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    copies = Copies(lambda *_: None)
    begun: list[int] = []

    async def wait(number: int) -> None:
        begun.append(number)
        await asyncio.sleep(3600)

    for number in range(101):
        copies.begin(wait(number))
    await asyncio.sleep(0)
    assert begun == list(range(100))
    assert "Too many of our own messages" in caplog.messages[0]
    copies.done()
    await asyncio.sleep(0)


def test_headers_that_the_request_has_are_not_added_twice() -> None:
    usual = [(b"accept", b"x"), (b"content-type", b"application/json")]
    assert with_usual([(b"accept", b"x")]) == usual


# Webhooks, posted to real receivers that answer, fail, or hang


def hook(url: str, timeout: float = 5.0) -> orders.SendWebhook:
    return orders.SendWebhook(f"{url}/hook?x=1", (("X-Key", "k"),), '"rule":"r"', timeout, "r")


@asynccontextmanager
async def receiving(webhooks: Webhooks, *statuses: int | None) -> AsyncIterator[RawUpstream]:
    """Run a receiver that answers with these statuses in turn; None hangs."""

    async def script(peer: Peer) -> None:
        await peer.request()
        status = statuses[min(len(peer.upstream.requests), len(statuses)) - 1]
        if status is None:
            await peer.left()
        await peer.say(answer(b"", status=f"{status} X\r\nLocation: /elsewhere"))
        peer.close()

    async with raw_upstream(script) as upstream:
        yield upstream
        await webhooks.close(within=0.1)


async def test_a_webhook_is_one_json_object() -> None:
    webhooks = Webhooks(now=lambda: 0.0)
    async with receiving(webhooks, 200) as receiver:
        webhooks.send(hook(receiver.url))
        await until(lambda: webhooks.sent == 1)
    [request] = receiver.requests
    assert request.line == "POST /hook?x=1 HTTP/1.1"
    assert request.all("x-key") == ["k"]
    assert json.loads(request.body) == {"time": "1970-01-01T00:00:00.000+00:00", "rule": "r"}


async def test_a_5xx_is_tried_again_and_a_4xx_is_not() -> None:
    """Nor is a redirect followed: the receiver would choose who gets the message."""
    webhooks = Webhooks(retry_after=(0.01, 0.01))
    async with receiving(webhooks, 503, 500, 200, 404, 307, 200) as receiver:
        webhooks.send(hook(receiver.url))
        await until(lambda: webhooks.sent == 1)
        webhooks.send(hook(receiver.url))
        await until(lambda: webhooks.failed == 1)
        webhooks.send(hook(receiver.url))
        await until(lambda: webhooks.failed == 2)
    assert len(receiver.requests) == 5


async def test_a_receiver_that_hangs_or_is_gone_is_not_waited_for() -> None:
    webhooks = Webhooks(retry_after=(0.01,))
    async with receiving(webhooks, None) as receiver:
        webhooks.send(hook(receiver.url, timeout=0.5))
        webhooks.send(hook("http://127.0.0.1:1"))
        webhooks.send(hook("http://[x"))
        await until(lambda: webhooks.failed == 3)
    assert len(receiver.requests) == 2


async def test_the_end_counts_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """It does not wait long."""
    webhooks = Webhooks()
    async with receiving(webhooks, None) as receiver:
        for _ in range(30):
            webhooks.send(hook(receiver.url))
        await until(lambda: len(receiver.requests) == 8)
    assert caplog.messages == ["At the end 30 webhooks were not delivered"]


async def test_a_full_queue_drops_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    webhooks = Webhooks(most=2)
    async with receiving(webhooks, 200) as receiver:
        for _ in range(30):
            webhooks.send(hook(receiver.url))
        await until(lambda: webhooks.sent + webhooks.dropped == 30)
    assert (webhooks.sent, webhooks.dropped, len(receiver.requests)) == (2, 28, 2)
    assert caplog.messages == ["The queue of webhooks is full: the oldest are dropped"]
