"""Scripts of rules, run as child processes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.rules.host import run_script
from mcp_tool_filter.policy.rule_effects import EffectFailed, RunScript, ScriptResult, TooLarge


def script(tmp_path: Path, code: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{code}\n")
    path.chmod(0o755)
    return str(path)


async def run(
    path: str, *args: str, timeout: float = 20.0, most: int = 1000, given: bytes = b"in"
) -> ScriptResult:
    effect = RunScript((path, *args), (("MCP_RULE", "r"),), given, timeout, True, "r")
    return await run_script(effect, most_output=most)


async def test_a_script_gets_the_message_arguments_and_environment(tmp_path: Path) -> None:
    path = script(tmp_path, "print(sys.stdin.read(), sys.argv[1], os.environ['MCP_RULE'])")
    assert await run(path, "$(rm -rf); a b") == ScriptResult(0, b"in $(rm -rf); a b r\n")


async def test_a_script_may_leave_its_input_unread(tmp_path: Path) -> None:
    path = script(tmp_path, "sys.exit(1)")
    assert (await run(path, given=b"x" * 5_000_000)).status == 1


async def test_a_script_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    note = tmp_path / "pid"
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
