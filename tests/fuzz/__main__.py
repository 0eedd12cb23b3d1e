"""Let coverage choose what to try next, for as long as you like.

In an environment of its own, since atheris comes for few Pythons and is needed for nothing else:

    python3.12 -m venv /tmp/fuzz && /tmp/fuzz/bin/pip install . atheris
    python -m tests.fuzz.seeds /tmp/corpus/seeds
    mkdir /tmp/corpus/found
    PYTHONPATH=addon:. nice -n 19 /tmp/fuzz/bin/python -m tests.fuzz /tmp/corpus/found \\
        /tmp/corpus/seeds -dict=/tmp/corpus/tokens.dict -max_len=4096 -timeout=10 \\
        -max_total_time=3600

The second command wants the environment of the tests. All further arguments are libFuzzer's; a
file it leaves (``crash-…``, ``timeout-…``) is tried again by giving it instead of the directories.
What is found becomes a test with a name where it belongs, and is not kept as a file here.
"""

from __future__ import annotations

import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["mcp_tool_filter", "jsregex"]):
    from tests.fuzz.target import run

from tests.fuzz.habits import change


def mutate(raw: bytes, longest: int, seed: int) -> bytes:
    """Take turns: a change by habit, or what libFuzzer thinks of."""
    random = Random(seed)
    if random.random() < 0.5:
        return bytes(atheris.Mutate(raw, longest))
    for _ in range(random.randrange(1, 4)):
        raw = change(raw, random)
    return raw[:longest]


atheris.Setup(sys.argv, run, custom_mutator=mutate)
atheris.Fuzz()
