"""How many instructions does a call execute in a whole proxy? python -m tests.bench.instructions

Counted by valgrind's callgrind, so that no other program on the machine disturbs it: a change of
one percent shows. What the kernel does for a call, about a fifth of its time, is not in it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.bench.load import Client, Question, connect
from tests.bench.rounds import LIST, call
from tests.bench.ways import AUDITED, LAUNCHER, SCRIPT, STOCK, Running, Way, running, upstreams, way

_QUESTIONS = {
    "call, 1 KB": call(1024, "json"),
    "call, 1 KB, SSE": call(1024, "sse"),
    "call, 100 KB": call(100 * 1024, "json"),
    "list, 20 tools": LIST,
}
_WARM, _COUNTED = 30, 200


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.instructions", description=__doc__)
    parser.add_argument("--ways", default=f"{STOCK},{SCRIPT},{LAUNCHER},{AUDITED}")
    args = parser.parse_args(argv)
    if not shutil.which("valgrind"):
        print("valgrind is not installed: apt-get install valgrind", file=sys.stderr)
        return 1
    names = args.ways.split(",")
    print(f"| thousand instructions | {' | '.join(names)} |\n| --- |{' --: |' * len(names)}")
    with tempfile.TemporaryDirectory() as home, upstreams(20) as ports:
        for title, question in _QUESTIONS.items():
            found = [
                count_instructions(way(name, ports[20], Path(home)), question) for name in names
            ]
            print(f"| {title} | {' | '.join(f'{one / 1000:,.0f}' for one in found)} |", flush=True)
    return 0


def count_instructions(one: Way, question: Question) -> float:
    """Return how many instructions a question costs the program in between."""
    with tempfile.NamedTemporaryFile() as log:
        with running(_counting(one, log.name)) as it:
            client = connect(it.port)
            request = client.request(question.body())
            _ask(client, request, _WARM)
            _control(it, "on")
            _ask(client, request, _COUNTED)
            _control(it, "off")
        said = Path(log.name).read_text()
    if not (collected := re.search(r"Collected\s*:\s*(\d+)", said)):
        raise RuntimeError(said[-500:])
    return int(collected[1]) / _COUNTED


def _counting(one: Way, log: str) -> Way:
    valgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--log-file={log}")
    return replace(one, command=(*valgrind, f"--callgrind-out-file={os.devnull}", *one.command))


def _ask(client: Client, request: bytes, times: int) -> None:
    for _ in range(times):
        client.answer(request)


def _control(it: Running, switch: str) -> None:
    command = ["callgrind_control", "-i", switch, str(it.pids[0])]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
