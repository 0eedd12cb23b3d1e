"""Break the lane in many ways, and see that tests notice: python -m tests.rooms.lane.mutants

Each mutant is one change of a module, in a child of this process. Give numbers to run only these.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_ADDON = Path("addon/mcp_tool_filter")
_TESTS = (
    "tests/rooms/lane/test_lane.py",
    "tests/core/engine/test_wire.py",
    "tests/rooms/telemetry/test_plain_calls.py",
)

_OPTIONS = ("-q", "-x", "-n0", "-pno:cacheprovider", "--assert=plain", "-knot hostile")

MUTANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "rooms/lane/lane.py": (
        # What a call says
        ("readers[0](raw)\n        raw.decode()\n", "readers[0](raw)\n"),
        ('call.jsonrpc != "2.0" or ', ""),
        ("call.method != _METHOD or ", ""),
        ("not _ID(id) or ", ""),
        (" or not _NAME(name):", ":"),
        ('arguments[:1] != b"{" or ', ""),
        (" or opens_more(raw, _BRACKETS, 0, len(raw), _MOST_BRACKETS):", ":"),
        ("        if declared is None:\n            return None\n", ""),
        ("    if length != len(raw) and", "    if length > len(raw) and"),
        ("(meta or raw not in _spaced(id, name, arguments))", "meta"),
        ("    if start == 1:\n", "    if start >= 1:\n"),
        (' and meta[end:] == b"}"', ""),
        ('    if len(meta) > _LONGEST_META or b"\\\\" in meta or', "    if"),
        (" or may_carry(message):", ":"),
        ("len(keys) == len(set(keys)) and ", ""),
        (" and _IN_META.issuperset(keys)", ""),
        ("        exchange.capabilities, exchange.program = call.declared\n", "        pass\n"),
        # What a result says
        ("[start:end])\n        raw.decode()\n", "[start:end])\n"),
        ("(length == end - start or ", "(length <= end - start or "),
        (" or raw[start:end] == _spaced_object(members))", ")"),
        ("        and members.keys() <= _RESULT\n", ""),
        ("        and bytes(members.get(\"isError\", b\"false\")) == b\"false\"\n", ""),
        ("and bytes(members.get(\"resultType\", b'\"complete\"')) ==", "or b'' =="),
        ("        and not opens_more(raw, _BRACKETS, 0, len(raw), _MOST_BRACKETS)\n", ""),
        ('"id":%b,"result":{\' % id', '"id":7,"result":{\''),
        ('event: ?message', "event: ?[a-z]+"),
        ("[A-Za-z0-9_.:/+=-]{0,128}", "[^\\r\\n]{0,128}"),
        ('    return b"" if b"\\n" in data or b"\\r" in data else data', "    return data"),
        # Who may take it
        ("policy.observe_plain is not None and not", "not"),
        ("policy.links or ", ""), ("policy.propagate or ", ""),
        (" or policy.keeps_requests\n", "\n"),
        ("service.before_sending or ", ""), ("service.before_answering or ", ""),
        (" or service.rewrite_body\n", "\n"), ("service.note_over or ", ""),
        ("service.connect or ", ""),
        ("service.is_ending or ", ""), (" or service.learns_logins\n", "\n"),
        ("config.shadow or ", ""), (" or config.only_mcp\n", "\n"),
        ("listener.is_forward or ", ""), ("listener.keeps_host or ", ""),
        (" or listener.legacy.endpoints\n", "\n"), (" or limits.message < _MOST", ""),
        ("or notes.config is not policy.config", "or False"),
        ("said.coding or ", ""), ("said.method not in (None, _METHOD) or ", ""),
        (" or not names.are_harmless:", ":"), (" or said.name not in (None, call.tool):", ":"),
        ("sessions.get(id, now)) is None:\n        return None\n",
         "sessions.get(id, now)) is None:\n        pass\n"),
        ("None if session else said.revision", "None"),
        ("kind.snapshot.standing(call.tool) is not Standing.ALLOWED",
         "kind.snapshot.standing(call.tool) is Standing.DENIED"),
        ("kind.snapshot.standing(call.tool) is not Standing.ALLOWED",
         "kind.snapshot.standing(call.tool) is Standing.UNKNOWN"),
        ("        session.has_acted = True\n", "        pass\n"),
        ("kind.is_listed and not kind.is_stale", "kind.is_listed"),
        # The lane itself
        ("head.status == 200 and ", ""), (" and not notes.coding", ""),
        ("and not notes.session", ""),
        (" and not notes.locations", ""), ("policy.config is self.head.notes.config", "True"),
        ("            and policy.observe_plain is self._observer\n", ""),
        (" and may_take(self.service)\n", "\n"),
        ("head.notes.kind != _STREAM or ", ""), ("not (is_stream or notes.kind == _JSON) or ", ""),
        ("        observer.plain_begins(self)\n", ""),
        ("        self._observer.plain_ends(self)\n", ""),
        ("            self._observer.plain_leaves(self, waiting, whole)\n", "            pass\n"),
        ("        self.service.lanes.discard(self)\n", ""),
        ("if not self._has_result:\n            conv", "if True:\n            conv"),
        ("if not self._has_result:\n            conv", "if False:\n            conv"),
        ("        service.open.add(whole)\n", ""), ("        service.lanes.discard(self)\n", ""),
        ("            self.down.exchange = whole\n", "            pass\n"),
        ("            up.slow_down(True)\n", "            pass\n"),
        ("head is None or self._has_result or", "head is None or"),
        ("            whole.phase, whole.body", "            _, whole.body"),
    ),
    "core/engine/wire.py": (
        (" and not self.unread\n", "\n"),
        (' and self.asked == "POST"', ""), ("and len(data) == usual[2] ", ""),
        (" and data.startswith(usual[0])", ""),
        ("        self._interim = 0\n        head: H", "        head: H"),
        ("        self.pieces += 2\n", ""),
        (" or found.end() + size + _AFTER_A_CHUNK != len(self.unread):", ":"),
        ("or not size or", "or"),
        ("return head.status == 200 and not head.is_chunked", "return not head.is_chunked"),
    ),
    "core/engine/client_h1.py": (
        ("notes.written is None or notes.written[0] is not fields", "notes.written is None"),
        ("kept = without_body(fields) if is_stream else fields", "kept = fields"),
        ("service.take_lane if self._has_lane else None", "service.take_lane"),
        ("ending = b\"\\r\\n\" if self._keeps else _CLOSE + b\"\\r\\n\"", "ending = b\"\\r\\n\""),
    ),
    "core/process/statistics.py": (
        ("        if len(known) < len(others):\n            return None\n", ""),
        ("        self._count(self.calls, call.tool)\n", ""),
    ),
}  # fmt: skip
"""By file: what stands there, and what stands there instead."""


def _each() -> Iterator[tuple[int, Path, str, str]]:
    number = 0
    for name, changes in MUTANTS.items():
        for old, new in changes:
            number += 1
            yield number, _ADDON / name, old, new


def main(argv: Sequence[str]) -> int:
    wanted, alive, number = set(map(int, argv)), [], 0
    for name in _TESTS:  # what each child needs is imported once
        import_module(name.removesuffix(".py").replace("/", "."))
    for number, path, old, new in _each():
        text = (_ROOT / path).read_text()
        if wanted and number not in wanted:
            continue
        if old not in text or _passes(path, text.replace(old, new, 1)):
            alive.append(number)
            _say(f"{number} lives: {path.name}: {old!r} -> {new!r}")
    _say(f"{len(alive)} live of {len(wanted) or number}")
    return 1 if alive else 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _passes(path: Path, text: str) -> bool:
    """Tell whether the tests pass in a child that has this text in the place of a module's."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    try:
        _replace(".".join(path.with_suffix("").parts[1:]), text)
    except Exception:  # it cannot even be imported
        os._exit(1)
    os.chdir(_ROOT)
    os._exit(pytest.main([*_OPTIONS, *_TESTS]))


def _replace(name: str, text: str) -> None:
    """Run another text in a module, and let whoever has imported from it have the new objects."""
    module = sys.modules[name]
    before = dict(vars(module))
    exec(compile(text, str(module.__file__), "exec"), vars(module))
    new = {id(old): getattr(module, key) for key, old in before.items() if not key.startswith("__")}
    for other in [one for name, one in sys.modules.items() if name.startswith(_OURS)]:
        for key, value in list(vars(other).items()):
            if id(value) in new and key in before:
                setattr(other, key, new[id(value)])


_OURS = ("mcp_tool_filter.", "tests.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
