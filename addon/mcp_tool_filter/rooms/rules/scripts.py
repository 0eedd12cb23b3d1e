"""Run a program without a shell, with a time limit, and with limited output."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
from contextlib import suppress

from mcp_tool_filter.rooms.rules.rule_effects import EffectFailed, RunScript, ScriptResult, TooLarge

_READ_SIZE = 64 * 1024


async def run_script(effect: RunScript, *, most_output: int) -> ScriptResult:
    """Run a script. Raises EffectFailed if it cannot start or does not end in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *effect.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE if effect.decides else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **dict(effect.environment)},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.E2BIG:
            raise TooLarge("an argument is too large for a script; stdin has no limit") from None
        why = getattr(error, "strerror", None) or str(error)
        raise EffectFailed(f"the script cannot be started: {why}") from None
    try:
        async with asyncio.timeout(effect.timeout):
            output, _ = await asyncio.gather(
                _read(process, most_output), _write(process, effect.input)
            )
            return ScriptResult(await process.wait(), output)
    except TimeoutError:
        raise EffectFailed(f"the script took longer than {effect.timeout:g}s") from None
    finally:
        await _end(process)


async def _write(process: asyncio.subprocess.Process, text: bytes) -> None:
    assert process.stdin
    with suppress(OSError):  # a script need not read its input
        process.stdin.write(text)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process, most: int) -> bytes:
    if process.stdout is None:
        return b""
    output = bytearray()
    while chunk := await process.stdout.read(_READ_SIZE):
        output += chunk
        if len(output) > most:
            raise EffectFailed(f"the script wrote more than {most} bytes")
    return bytes(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process group of a script."""
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    # First close the pipe: unread output would keep it open, and the wait would not end.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        for pipe in filter(None, map(transport.get_pipe_transport, (0, 1))):
            pipe.close()
    if process.returncode is None:
        await process.wait()
    if transport is not None:  # only now: it would take the exit status away from who waits for it
        transport.close()
