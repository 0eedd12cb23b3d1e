"""``mcp-tool-filter check-pattern``: check whether a deny or allow pattern is accepted.

Patterns come as arguments, or as lines of JSON on stdin: ``{"pattern": "^a", "name": "abc"}``. Each
gets one line of JSON as the answer, at once:

>>> check({"pattern": "^a", "name": "abc"})
{'pattern': '^a', 'verdict': 'ok', 'match': True}
>>> check({"pattern": "*delete*"})["hint"]
'That is a glob; use --deny-glob, or as a regex: delete'

The verdict is ``ok``, ``invalid`` (not a JavaScript regex), ``unsafe`` (matching it could take
forever), or ``error`` for a line that we do not understand.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator

from mcp_tool_filter.cli.flags import WORDS, Given
from mcp_tool_filter.core.errors import InvalidPattern, UnsafePattern
from mcp_tool_filter.core.policy.patterns import hint, parse_pattern, refuse_other_than_utf8

type CheckReport = dict[str, object]


def run(typed: Given) -> int:
    """Answer every pattern; return 0 if all are accepted, else 1."""
    patterns = typed.get(WORDS, [])
    for text in patterns:
        refuse_other_than_utf8(text, "deny")
    questions = [{"pattern": text} for text in patterns] or _read_questions(sys.stdin.buffer)
    usable = True
    try:
        for answer in map(check, questions):
            usable = usable and answer["verdict"] == "ok"
            print(json.dumps(answer), flush=True)
    except BrokenPipeError:  # the reader is gone; Python would try to write again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0 if usable else 1


def check(question: object) -> CheckReport:
    """Answer one question, parsed from JSON."""
    match question:
        case {"pattern": str(text), "name": str(name)}:
            return _judge(text, name)
        case {"name": _}:
            why = '"pattern" and "name" must be strings'
        case {"pattern": str(text)}:
            return _judge(text, None)
        case ValueError():
            why = str(question)
        case _:
            why = 'expected an object such as {"pattern": "^a", "name": "abc"}'
    return {"verdict": "error", "why": why}


def _judge(text: str, name: str | None) -> CheckReport:
    answer: CheckReport = {"pattern": text, "verdict": "ok"}
    try:
        pattern = parse_pattern(text)
    except InvalidPattern as error:
        answer |= {"verdict": "invalid", "why": str(error.__cause__ or error.why)}
    except UnsafePattern as error:
        answer |= {"verdict": "unsafe", "why": error.why}
    else:
        if name is not None:
            answer["match"] = pattern.matches(name)
    if advice := hint(text):
        answer["hint"] = advice
    return answer


def _read_questions(lines: Iterable[bytes]) -> Iterator[object]:
    """Yield the parsed lines; for an invalid line, a ValueError."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line.decode())
        except UnicodeDecodeError:
            yield ValueError(f"line {number} is not UTF-8")
        except (ValueError, RecursionError):
            yield ValueError(f"line {number} is not JSON")
