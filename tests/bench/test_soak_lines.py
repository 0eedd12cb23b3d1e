"""Sessions over stdio that end in every way: does anyone wait for ever, does anything stay behind?

Clients call, flood and leave, are killed, kill the relay or its command, or send it signals. Each
request must be answered as long as its client listens, and each process must be gone at the end.
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.make import calling
from tests.stdio_client import StdioClient, filtered, is_alive, upstream

pytestmark = pytest.mark.rest

_GONE = 10.0  # seconds for the last process to end


@dataclass
class Tally:
    """What happened, and what should not have."""

    endings: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    problems: list[str] = field(default_factory=list)


def leave(client: StdioClient, _pid: int) -> None:
    client.leaves()


def crash(client: StdioClient, _pid: int) -> None:
    client.say(calling("crash", id='"end"'))
    client.ends()


def kill_command(client: StdioClient, pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    client.ends()


def kill_relay(client: StdioClient, _pid: int) -> None:
    client.process.kill()
    client.ends()


def terminate(client: StdioClient, _pid: int) -> None:
    client.process.terminate()
    client.ends()


def interrupt(client: StdioClient, _pid: int) -> None:
    client.process.send_signal(signal.SIGINT)
    client.ends()


type Ending = Callable[[StdioClient, int], None]
ENDINGS: tuple[Ending, ...] = (leave, crash, kill_command, kill_relay, terminate, interrupt)


def one_session(home: Path, chance: random.Random, tally: Tally) -> None:
    ending = chance.choice(ENDINGS)
    pid_file = home / f"pid-{chance.getrandbits(64)}"
    words = ("-q", "--deny", "^delete_", "--", *upstream("--pid", str(pid_file)))
    with filtered(*words, home=home) as client:
        client.opens()
        pid = int(pid_file.read_text())
        asked = [str(number) for number in range(chance.randrange(1, 60))]
        for id in asked:
            name = chance.choice(("read_file", "delete_file", "flood", "big"))
            client.say(calling(name, id=id, arguments='{"messages":20,"bytes":20000}'))
        if chance.random() < 0.5:  # wait for all answers first
            answered(client, asked)
        ending(client, pid)
        tally.endings[ending.__name__] += 1
        tally.calls += len(asked)
        lost = set(asked) - ids_in(client.raw)
        if lost and ending in (leave, crash, kill_command):
            tally.problems.append(f"{ending.__name__}: no answer to {sorted(lost)}")
    end = time.monotonic() + _GONE
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    if is_alive(pid):
        tally.problems.append(f"{ending.__name__}: the command is still there")


def answered(client: StdioClient, asked: Sequence[str]) -> None:
    while set(asked) - ids_in(client.raw):
        client.hears_line()


def ids_in(lines: Sequence[bytes]) -> set[str]:
    whole = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return {json.dumps(one["id"]) for one in whole if "method" not in one}


def soak(seconds: float, at_once: int, seed: int) -> Tally:
    """Let sessions come and go for so long."""
    tally = Tally()
    end = time.monotonic() + seconds

    def go_on(number: int) -> None:
        chance = random.Random(seed + number)
        while time.monotonic() < end:
            one_session(home, chance, tally)

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        threads = [threading.Thread(target=go_on, args=(number,)) for number in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return tally


def test_no_call_is_lost_and_no_process_is_left() -> None:
    tally = soak(seconds=4, at_once=3, seed=14)
    assert tally.problems == []
    assert tally.endings.total() > 3
