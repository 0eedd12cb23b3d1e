"""``mcp-tool-filter lock``: keep the definitions that a person has approved, and compare.

The file is written for a repository: ``rooms/lock/lock`` has its form. ``--check`` is for CI: what
it prints is for people, ``--json`` for programs, ``--sarif`` for code scanning.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

from mcp_tool_filter import __version__
from mcp_tool_filter.cli.commands.look import ask_now
from mcp_tool_filter.cli.flags import WORDS, Given, UsageError, no_such, with_flags
from mcp_tool_filter.cli.report import warnings_in
from mcp_tool_filter.cli.settings import chosen
from mcp_tool_filter.cli.terminal import count, has_colour, say
from mcp_tool_filter.cli.whole_file import open_at_once
from mcp_tool_filter.core.errors import StartError, reason_of
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.start import refuse_start
from mcp_tool_filter.rooms.lock.changes import (
    KINDS,
    Absent,
    ChangeKind,
    Introduced,
    LockChanges,
    ToolChange,
    compare,
    members_changed,
    problem_in,
    visible,
)
from mcp_tool_filter.rooms.lock.lock import (
    Json,
    Lock,
    WrittenNumber,
    compact,
    escaped,
    parse_json,
    parse_lock,
    render_json,
    render_lock,
)
from mcp_tool_filter.rooms.lock.lock_file import UnusableLock, read_bytes, replace_lock, write_lock
from mcp_tool_filter.rooms.lock.shown_changes import (
    coloured,
    lines_of,
    lines_of_instructions,
    lines_of_tool,
    plain,
)

_HELP = "mcp-tool-filter lock --help"
_OTHERS = re.compile(r"[^\x00-\x7f]")


def run(typed: Given) -> int:
    """Write, check or approve; return the exit status."""
    words = typed.get(WORDS, [])
    if "approve" in typed and "check" in typed:
        raise UsageError("Give --check or --approve, not both", why=f"See {_HELP}")
    if "check" not in typed and (flag := next(filter(typed.__contains__, ("json", "sarif")), "")):
        raise UsageError(f"--{flag} needs --check", why=f"See {_HELP}")
    if "approve" not in typed and len(words) > 1:
        raise UsageError(f"There is one word too many: {words[1]}", why=f"See {_HELP}")
    *names, path = words
    if not path:  # such as a variable that is not set
        raise UsageError("Which file?", why=f"See {_HELP}")
    if "approve" in typed:
        return _approve(typed, names, path)
    return _check(typed, path) if "check" in typed else _write(typed, path)


def _ask(typed: Given) -> tuple[Lock, dict[str, str]]:
    """Return the lock of what the server says now, and what is wrong with each tool that cannot be
    in a file. Raises StartError."""
    settings = chosen(typed, os.environ, ignored=("lock",))  # all that the patterns expose
    known = ask_now(settings)
    refuse_start(settings.config(), [known.snapshot])
    for warning in warnings_in(known.snapshot):
        say(warning)
    found = known.fetched
    tools = {name: parse_json(raw) for name, raw in known.snapshot.allowed.items()}
    lock = Lock(
        server_name=found.server_name,
        server_version=found.server_version,
        instructions=found.instructions,
        tools=tools,
    )
    problems = {name: problem for name, one in tools.items() if (problem := problem_in(name, one))}
    return lock, problems


def _ask_for_approvable(typed: Given) -> Lock:
    """Return the lock of what can be approved; warn about the rest. Raises StartError."""
    lock, problems = _ask(typed)
    _warn(problems)
    tools = {name: one for name, one in lock.tools.items() if name not in problems}
    return replace(lock, tools=tools)


def _warn(problems: Mapping[str, str]) -> None:
    for problem in problems.values():
        say(f"Warning: {problem}")


def _write(typed: Given, path: str) -> int:
    lock = _ask_for_approvable(typed)
    is_new = write_lock(path, lock)
    print(f"{visible(path)} {'has' if is_new else 'has already'} {_content(lock)}")
    return 0


def _content(lock: Lock) -> str:
    return f"{count(len(lock.tools), 'tool')} of {_name_of(lock) or 'the server'}"


def _name_of(lock: Lock) -> str:
    return visible(f"{lock.server_name} {lock.server_version}".strip())


def _approve(typed: Given, names: Sequence[str], path: str) -> int:
    """Take the present definitions of some tools into the file, or of all of them."""
    raw = read_bytes(path)
    old = parse_lock(raw, path)
    new = _with_these(typed, names, old, path) if names else _ask_for_approvable(typed)
    _print(compare(old, new))
    if (written := render_lock(new)) != raw:
        replace_lock(path, raw, written)
    print(f"{visible(path)} has {_content(new)}")
    return 0


def _with_these(typed: Given, names: Sequence[str], old: Lock, path: str) -> Lock:
    """Return a lock with the present definitions of these tools. Raises StartError."""
    now, problems = _ask(typed)
    known = old.tools.keys() | now.tools.keys()
    for name in names:
        if name not in known:
            raise no_such("tool called", shown(name), known, help=_HELP)
        if name in problems:
            raise UnusableLock("write", path, problems[name])
    kept = {name: one for name, one in old.tools.items() if name not in names}
    present = {name: now.tools[name] for name in names if name in now.tools}
    return replace(old, tools=kept | present)


# Check


def _check(typed: Given, path: str) -> int:
    """Print what differs; return 0 if nothing does, 1 if something does, 2 if we cannot tell."""
    try:
        raw = read_bytes(path)
        old = parse_lock(raw, path)
        new, problems = _ask(typed)
        changes = compare(old, new)
        if "sarif" in typed:
            _save(typed["sarif"][-1], _ascii(_sarif(changes, path, raw)))
    except StartError as error:
        print(with_flags(str(error)), file=sys.stderr)
        return UsageError.exit_status
    if "json" in typed:
        print(_ascii(_as_json(changes)))
        return int(changes.differs)
    _warn(problems)
    _print(changes)
    if not changes.differs:
        print(f"{visible(path)}: no tool differs, {_content(new)}")
    else:
        kinds = [tool.kind for tool in changes.tools]
        said = [f"{kinds.count(kind)} {kind}" for kind in ChangeKind if kind in kinds]
        said += ["other instructions"] if changes.has_other_instructions else []
        said += ["another server"] if changes.is_other_server else []
        print(f"{visible(path)}: {', '.join(said)}")
        say("To approve it: mcp-tool-filter lock --approve FILE, with the same server and patterns")
    return int(changes.differs)


def _print(changes: LockChanges) -> None:
    render = coloured if has_colour(sys.stdout) else plain
    for line in lines_of(changes):
        print(render(line))


def _ascii(value: Json) -> str:
    """Render JSON for any program: it may expect any encoding."""
    return _OTHERS.sub(lambda found: escaped(found[0]), render_json(_storable(value)))


def _storable(value: Json) -> Json:
    """Write half surrogate pairs as text: many programs read no JSON that has one."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {str(_storable(key)): _storable(one) for key, one in value.items()}
        case list():
            return list(map(_storable, value))
    return value


def _save(path: str, text: str) -> None:
    try:  # a pipe that nobody reads would keep us waiting for ever
        with open(path, "w", encoding="ascii", opener=open_at_once) as file:
            if sys.platform != "win32":  # there no file waits
                os.set_blocking(file.fileno(), True)
            file.write(f"{text}\n")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        raise StartError(f"Cannot write the findings: {path}", why=why) from None


def _as_json(changes: LockChanges) -> Json:
    """Return what differs. This format is stable: members may be added, none changes."""
    old, new = changes.old, changes.new
    introduces = _listed(changes.in_instructions)
    said: Json = {
        "before": old.instructions, "after": new.instructions, "introduces": introduces,
    }  # fmt: skip
    return {
        "differs": changes.differs,
        "server": {"before": _server(old), "after": _server(new)},
        "instructions": said if changes.has_other_instructions else None,
        **{
            kind: [_tool_as_json(tool) for tool in changes.tools if tool.kind is kind]
            for kind in ChangeKind
        },
    }


def _server(lock: Lock) -> Json:
    return {"name": lock.server_name, "version": lock.server_version}


def _tool_as_json(tool: ToolChange) -> Json:
    members: list[Json] = []
    for path, *sides in members_changed(tool.before or {}, tool.after or {}):
        both = zip(("before", "after"), sides, strict=True)
        there = {side: one for side, one in both if not isinstance(one, Absent)}
        members.append({"path": visible(path), **there})
    introduces = _listed(tool.introduced)
    return {"name": tool.name, "was": tool.was, "introduces": introduces, "members": members}


def _listed(found: Iterable[Introduced]) -> Json:
    return [{"kind": one.kind, "what": one.what} for one in found]


# SARIF 2.1.0, for code scanning

_RULES: Final = {
    "tool-added": "A tool that nobody has approved",
    "tool-removed": "An approved tool is gone",
    "tool-renamed": "An approved tool has another name",
    "tool-changed": "An approved tool has changed",
    "instructions-changed": "The server's instructions have changed",
    "server-changed": "The server has another name",
    **{f"introduces-{kind}": f"A change introduces {what}" for kind, what in KINDS.items()},
}


def _sarif(changes: LockChanges, path: str, raw: bytes) -> Json:
    where = _Places(path, raw)
    results: list[Json] = [where.result(*one) for one in _findings(changes)]
    rules: list[Json] = [
        {"id": rule, "shortDescription": {"text": text}} for rule, text in _RULES.items()
    ]
    driver: Json = {"name": "mcp-tool-filter", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def _findings(changes: LockChanges) -> Iterator[tuple[str, str, str]]:
    """Yield the rule, the tool's approved name, and the text of each finding."""
    if changes.is_other_server:
        yield "server-changed", "", f"The server is {_name_of(changes.new) or 'nameless'} now"
    if said := "\n".join(map(plain, lines_of_instructions(changes))):
        yield "instructions-changed", "", said
    for one in changes.in_instructions:
        yield f"introduces-{one.kind}", "", f"The instructions introduce {one}"
    for tool in changes.tools:
        yield f"tool-{tool.kind}", tool.was, "\n".join(map(plain, lines_of_tool(tool)))
        for one in tool.introduced:
            said = f"The tool {shown(tool.name)} introduces {one}"
            yield f"introduces-{one.kind}", tool.was, said


class _Places:
    """The lines of a lock's file in which its tools begin."""

    def __init__(self, path: str, raw: bytes) -> None:
        file = Path(os.path.abspath(os.path.expanduser(path)))
        try:
            self._uri = quote(file.relative_to(Path.cwd()).as_posix())
        except ValueError:
            self._uri = file.as_uri()
        self._lines = {
            line.rstrip(b" {\r"): number for number, line in enumerate(raw.split(b"\n"), 1)
        }

    def result(self, rule: str, tool: str, text: str) -> Json:
        line = self._lines.get(f"    {compact(tool)}:".encode(), 1)
        place: Json = {
            "artifactLocation": {"uri": self._uri},
            "region": {"startLine": WrittenNumber(str(line))},
        }
        known = sha256(f"{rule}\n{tool}\n{text}".encode("utf-8", "backslashreplace")).hexdigest()
        return {
            "ruleId": rule,
            "ruleIndex": WrittenNumber(str([*_RULES].index(rule))),
            "level": "error" if rule.startswith(("introduces-", "server-")) else "warning",
            "message": {"text": text},
            "locations": [{"physicalLocation": place}],
            "partialFingerprints": {"toolAndChange/v1": known},
        }
