r"""Move a server's entry from a client's file into the servers' file, and back.

The client's entry then starts the filter with ``--server NAME``. A comment in the section keeps the
old entry, but without what the section says itself, so that a change there is not lost.

>>> entry = {"command": "npx", "args": ["-y", "files"], "env": {"KEY": "s3cret"}}
>>> text = with_section("deny = ['^rm']\n", "files", entry, {"read-only": True}, "~/mcp.json")
>>> print(text, end="")
deny = ['^rm']
<BLANKLINE>
[servers.files]
# moved by mcp-tool-filter wrap: ["~/mcp.json",{"command":null,"args":null,"env":{"KEY":null}}]
command = ["npx", "-y", "files"]
env = {KEY = "s3cret"}
read-only = true
>>> moved_from(text, "files", "~/mcp.json") == entry
True
>>> without_section(text, "files")
"deny = ['^rm']\n"
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mcp_tool_filter.cli.whole_file import replace_if_unchanged, whole_file
from mcp_tool_filter.rooms.clients.entries import (
    HEADER_MAPS,
    URLS,
    CannotWrap,
    ServerEntry,
    as_command,
    doubled,
    environment_of,
    header_values,
    headers_of,
    holder_of,
    url_of,
    with_words,
    words_of,
    words_of_filter,
)
from mcp_tool_filter.rooms.clients.files import ConfigPlace, read
from mcp_tool_filter.rooms.clients.toml_text import lines_of

_HEAD = re.compile("\ufeff?(?:#:schema [^\n]*\n)?")
"""What stays at the beginning of a file."""
_ONLY_SCHEMA = re.compile(r"#:schema file:\S*/mcp_tool_filter/docs/config\.schema\.json\s*")
"""What ``wrap`` begins a new file with; another installation of ours has another path."""
_MARK = "# moved by mcp-tool-filter wrap: "
_SERVERS = "servers"
_ENVIRONMENTS = ("env", "environment")
_REFERENCE = re.compile(
    r"\$\{(?:env:)?((?:[^$}]|\$+[^${}])*\$*)\}|\{env:([^{}]*)\}|\{file:[^{}]*\}"
)
"""What a client fills in: ${NAME} or ${env:NAME}, and opencode's {env:NAME} and {file:NAME}."""
_NAME = re.compile(r"\w+")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEADER = re.compile(r"\s*\[")  # of a table


class BadServersFile(CannotWrap):
    """The servers' file cannot take the section, or give it back."""


def server_named_in(entry: ServerEntry) -> tuple[str, str | None] | None:
    """Return the server that an entry of a client names, and its file if it names one.

    None if the entry does something else.
    """
    words = words_of_filter(entry) or []
    end = words.index("--") if "--" in words else len(words)
    typed = dict(reversed([*pairwise(words[:end])]))  # the first of several counts
    return (typed["--server"], typed.get("--config")) if "--server" in typed else None


def entry_for(entry: ServerEntry, words: Sequence[str]) -> ServerEntry:
    """Return what is left of an entry in the client's file; ``words`` start the filter."""
    if url_of(entry):
        return as_command(entry, words)
    left, nested = _without_moved(entry), entry.get("command")
    if isinstance(nested, dict):  # Zed's old format
        left["command"] = _without_moved(nested)
    return with_words(left, words)


def _without_moved(entry: ServerEntry) -> ServerEntry:
    return {
        key: value
        for key, value in entry.items()
        if not (key in _ENVIRONMENTS and value) and not (key == "cwd" and _is_moved(value))
    }


def _is_moved(folder: object) -> bool:
    """Tell whether a folder is the same for everybody who starts the command."""
    return isinstance(folder, str) and folder.startswith(("/", "~/")) and "${" not in folder


def section_for(entry: ServerEntry, policy: Mapping[str, object]) -> dict[str, object]:
    """Return the section for an entry. Raises CannotWrap."""
    section: dict[str, object] = {}
    if url := url_of(entry):
        section["url"] = doubled(_without_references(url, "URL"), f"({_REFERENCE.pattern})")
        if headers := headers_of(entry):
            section["header"] = [_in_our_words(one) for one in headers]
    else:
        section["command"] = [_without_references(word, "command") for word in words_of(entry)]
        if environment := environment_of(entry) | environment_of(holder_of(entry)):
            section["env"] = {
                name: _in_our_words(doubled(str(value), f"({_REFERENCE.pattern})"))
                for name, value in environment.items()
            }
        if _is_moved(folder := entry.get("cwd")):
            section["cwd"] = folder
    return section | dict(policy)


def _without_references(text: str, what: str) -> str:
    if found := _REFERENCE.search(text):
        why = "The servers' file cannot: write the value itself, or wrap without --into"
        raise CannotWrap(f"The client fills in {found[0]} in the {what}", why=why)
    return text


def _in_our_words(text: str) -> str:
    """Return a text whose references to variables the filter understands."""

    def spelt(found: re.Match[str]) -> str:
        name = found[1] or found[2] or ""
        if not _NAME.fullmatch(name):
            why = "Only the client knows it: write the value itself, or wrap without --into"
            raise CannotWrap(f"The client fills in {found[0]}", why=why)
        return f"${{{name}}}"

    return _REFERENCE.sub(spelt, text)


# What the comment keeps


def _kept(entry: ServerEntry) -> ServerEntry:
    """Return an entry with null for what the section says."""
    kept = dict(entry)
    if url := url_of(entry):
        kept |= {key: _null_if_plain(url) for key in URLS if kept.get(key) == url}
        names = HEADER_MAPS
    else:
        nested = kept.get("command")
        if isinstance(nested, dict):
            kept["command"] = _kept_command(nested, "path") | _kept_values(nested, _ENVIRONMENTS)
        else:
            kept |= _kept_command(kept, "command")
        if _is_moved(kept.get("cwd")):
            kept["cwd"] = None
        names = _ENVIRONMENTS
    return kept | _kept_values(kept, names)


def _kept_command(holder: Mapping[str, object], key: str) -> ServerEntry:
    """Return nothing in the place of the words; arguments that are none keep their form."""
    kept = dict(holder) | {key: [] if isinstance(holder.get(key), list) else None}
    return kept | ({"args": None} if kept.get("args") else {})


def _kept_values(holder: Mapping[str, object], names: Sequence[str]) -> ServerEntry:
    return {
        key: {name: _null_if_plain(value) for name, value in values.items()}
        for key in names
        if isinstance(values := holder.get(key), dict)
    }


def _null_if_plain(value: object) -> object:
    is_plain = isinstance(value, str) and "$" not in value and not _REFERENCE.search(value)
    return None if is_plain else value


def _filled(kept: ServerEntry, section: Mapping[str, Any]) -> ServerEntry:
    """Return the entry with what the section says now."""
    entry, nested = dict(kept), kept.get("command")
    values = dict(section.get("env", {})) | dict(header_values(section.get("header", [])))
    words = section.get("command", [])
    for key in URLS:
        if key in entry and entry[key] is None:
            entry[key] = section["url"]
    if "command" in entry:
        if isinstance(nested, dict):
            entry["command"] = _with_words(_with_values(nested, values), "path", words)
        else:
            entry = _with_words(entry, "command", words)
    if "cwd" in entry and entry["cwd"] is None:
        entry["cwd"] = section["cwd"]
    return _with_values(entry, values)


def _with_words(holder: ServerEntry, key: str, words: Sequence[str]) -> ServerEntry:
    if holder[key] == []:
        return holder | {key: [*words]}
    has_arguments = words[1:] or holder.get("args", []) is None
    return holder | {key: words[0]} | ({"args": [*words[1:]]} if has_arguments else {})


def _with_values(holder: ServerEntry, values: Mapping[str, str]) -> ServerEntry:
    filled = dict(holder)
    for key in (*_ENVIRONMENTS, *HEADER_MAPS):
        if isinstance(names := filled.get(key), dict):
            filled[key] = {
                name: values.get(name, "") if value is None else value
                for name, value in names.items()
            }
    return filled


# The servers' file


@dataclass(frozen=True, slots=True)
class ServersFile:
    """A file of servers as we read it; it may be missing."""

    path: Path
    raw: bytes | None = None

    @classmethod
    def read(cls, path: str) -> ServersFile:
        """Raises BadFile, also if it is not TOML."""
        real = Path(os.path.realpath(os.path.expanduser(path)))
        found = read(ConfigPlace("", "user", real, (_SERVERS,)))
        file = cls(real, found.raw if found else None)
        try:
            _parsed(file.text)
        except BadServersFile as error:
            raise BadServersFile(f"{real} is not TOML", why=error.why) from None
        return file

    @property
    def text(self) -> str:
        return (self.raw or b"").decode()

    def save(self, text: str, *, mode: int = 0o777) -> ServersFile:
        """Replace the file, which is made for its user only if it is missing, and removed if it is
        to say nothing; ``mode`` is the most
        that others may do with it. Raises BadServersFile if somebody has edited it meanwhile."""
        new = text.encode()
        try:
            if self.raw is None:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if is_ours := not self.path.exists():
                    with whole_file(self.path) as file:
                        file.write(new)
            elif not text:  # nobody's words are left in it
                if is_ours := self.path.read_bytes() == self.raw:
                    self.path.unlink()
            else:
                before = stat.S_IMODE(self.path.stat().st_mode)
                if before & ~mode:
                    self.path.chmod(before & mode)  # first: what comes in may be secret
                is_ours = replace_if_unchanged(self.path, self.raw, new)
        except OSError as error:
            what = f"Cannot write {self.path}"
            raise BadServersFile(what, why=error.strerror or str(error)) from None
        if not is_ours:
            raise BadServersFile(f"{self.path} was edited meanwhile", why="Try again")
        return ServersFile(self.path, new)


def with_section(
    text: str,
    name: str,
    entry: ServerEntry,
    policy: Mapping[str, object],
    origin: str,
    listed_as: str = "",
) -> str:
    """Return the file's text with a section for an entry of the file ``origin``; ``listed_as`` is
    its name there, if nothing else will say so. Raises CannotWrap.

    If there is one of ours with this name, it gets the policy, and keeps its other users.
    """
    section, kept = section_for(entry, policy), _kept(entry)
    if _filled(kept, section) != entry:
        raise CannotWrap("unwrap could not restore this entry", why="Wrap it without --into")
    marks = [one for one in _marks_in(text, name) if _origin_of(one) != origin]
    if name in servers_in(text):
        text = without_section(text, name)
    mine = _mark([origin, kept, listed_as] if listed_as else [origin, kept])
    members = [f"{_key(key)} = {_value(value)}" for key, value in section.items()]
    lines = [f"[{_SERVERS}.{_key(name)}]", *marks, mine, *members, ""]
    end = "\r\n" if "\r\n" in text else "\n"
    before = text + ("" if not text or text.endswith("\n") else end) + (end if text else "")
    new = before + end.join(lines)
    wanted = _parsed(text)
    wanted[_SERVERS] = {**wanted.get(_SERVERS, {}), name: section}
    if _parsed(new, or_else={}) != wanted:
        why = f"Write its servers as tables: [{_SERVERS}.NAME]"
        raise BadServersFile("The servers' file cannot take another section", why=why)
    return new


def _mark(said: object) -> str:
    return _MARK + json.dumps(said, separators=(",", ":")).replace("\x7f", "\\u007f")


def _marks_in(text: str, name: str) -> list[str]:
    """Return the lines of a section that keep old entries, one for each user."""
    lines = lines_of(text)
    first, last = _span_of(lines, name)
    return [line.rstrip("\r\n") for line in lines[first:last] if line.startswith(_MARK)]


def _origin_of(mark: str) -> object:
    with suppress(ValueError, TypeError, IndexError, RecursionError):
        return json.loads(mark.removeprefix(_MARK))[0]
    return None


def section_like(text: str, entry: ServerEntry, origin: str) -> str | None:
    """Return the section of ours that starts the same server, for entries of other files."""
    own = section_for(entry, {})
    for name, section in servers_in(text).items():
        origins = list(map(_origin_of, _marks_in(text, name)))
        if not isinstance(section, dict) or not origins or origin in origins:
            continue
        if {key: value for key, value in section.items() if key in _TARGET} == own:
            return str(name)
    return None


def policy_in(text: str, name: str) -> dict[str, object]:
    """Return what a section says besides its server."""
    section = servers_in(text).get(name, {})
    return {key: value for key, value in section.items() if key not in _TARGET}


_TARGET = ("command", "env", "cwd", "url", "header")


# The policy for all servers, at the top


def top_of(text: str) -> dict[str, Any]:
    """Return what the file says for all servers. Raises CannotWrap."""
    return {key: value for key, value in _parsed(text).items() if key != _SERVERS}


def is_ours_at_top(text: str, key: str) -> bool:
    """Tell whether ``wrap`` has written this key at the top."""
    return any(line.startswith(f"{_key(key)} =") for line in _ours_at_top(text))


def with_top(text: str, policy: Mapping[str, object]) -> str:
    """Return the text with a policy for all servers, in lines that undo can find."""
    end = "\r\n" if "\r\n" in text else "\n"
    found = _HEAD.match(text)
    mark = found[0] if found else ""
    lines = [f"{_key(key)} = {_value(value)}{_AT_TOP}{end}" for key, value in policy.items()]
    new = mark + "".join(lines) + _without_top(text, policy).removeprefix(mark)
    if _parsed(new, or_else={}) != _parsed(text) | dict(policy):
        raise BadServersFile("The servers' file cannot take a policy", why="Write it by hand")
    return new


def _without_top(text: str, keys: Collection[str]) -> str:
    ours = [f"{_key(key)} =" for key in keys]
    gone = {line for line in _ours_at_top(text) if line.startswith(tuple(ours))}
    return "".join(line for line in lines_of(text) if line not in gone)


def _ours_at_top(text: str) -> list[str]:
    return [line for line in lines_of(text) if line.rstrip("\r\n").endswith(_AT_TOP)]


_AT_TOP = "  # for all servers, by mcp-tool-filter wrap"


def moved_from(text: str, name: str, origin: str) -> ServerEntry | None:
    """Return the entry that a section was made of; None if ``wrap`` has not made it of an entry in
    the file ``origin``: another project could get our secrets by naming our server."""
    section, marks = servers_in(text).get(name), _marks_in(text, name)
    if not marks or not isinstance(section, dict):
        return None
    try:
        for made_of, kept, *_ in (json.loads(one.removeprefix(_MARK)) for one in marks):
            if made_of == origin:
                return _filled(kept, section)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        why = "Restore the client's entry by hand"
        raise BadServersFile(f"The section of {name} has been changed", why=why) from None
    return None


def marked(text: str, name: str, origin: str, listed_as: str) -> str:
    """Return the text with a section that also says what the client has called its entry."""
    before = next(one for one in _marks_in(text, name) if _origin_of(one) == origin)
    _, kept, *_ = json.loads(before.removeprefix(_MARK))
    return text.replace(before, _mark([origin, kept, listed_as]), 1)


def listed_as(text: str, name: str, origin: str) -> str:
    """Return what a client called a section's entry, if the section says so."""
    for mark in _marks_in(text, name):
        with suppress(ValueError, TypeError):
            made_of, _, listed = json.loads(mark.removeprefix(_MARK))
            if made_of == origin and isinstance(listed, str):
                return listed
    return ""


def without_user(text: str, name: str, origin: str) -> str:
    """Return the file's text without what one entry has put there: its section, if it is the last
    user, and then with the last section the policy of ours. Raises CannotWrap."""
    mine = [one for one in _marks_in(text, name) if _origin_of(one) == origin]
    if mine and len(_marks_in(text, name)) > 1:
        lines = lines_of(text)
        first, last = _span_of(lines, name)
        left = [line for line in lines[first:last] if line.rstrip("\r\n") not in mine]
        return "".join([*lines[:first], *left, *lines[last:]])
    new = without_section(text, name)
    if any(line.startswith(_MARK) for line in lines_of(new)):
        return new
    rest = _without_top(new, top_of(new))
    return "" if _ONLY_SCHEMA.fullmatch(rest) else rest


def without_section(text: str, name: str) -> str:
    """Return the file's text without a section. Raises CannotWrap."""
    lines = lines_of(text)
    first, last = _span_of(lines, name)
    if first and not lines[first - 1].strip():
        first -= 1  # the empty line that we have added
    new = "".join(lines[:first] + lines[last:])
    wanted = _parsed(text)
    del wanted[_SERVERS][name]
    if not wanted[_SERVERS]:
        del wanted[_SERVERS]
    if _parsed(new, or_else={}) != wanted:
        why = "Remove it by hand"
        raise BadServersFile(f"The section of {name} cannot be cut out", why=why)
    return new


def servers_in(text: str) -> dict[str, Any]:
    """Return the sections of a servers' file. Raises CannotWrap."""
    found = _parsed(text).get(_SERVERS, {})
    return found if isinstance(found, dict) else {}


def free_name(text: str, wanted: str) -> str:
    """Return a name for a section that no other has."""
    taken = servers_in(text)
    base = re.sub(r"[^A-Za-z0-9_.-]", "-", wanted)[:60].lstrip("_.-") or "server"
    names = (f"{base}-{number}" if number > 1 else base for number in range(1, len(taken) + 2))
    return next(name for name in names if name not in taken)


def _parsed(text: str, *, or_else: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except (ValueError, RecursionError) as error:
        if or_else is not None:
            return or_else
        raise BadServersFile("The servers' file is not TOML", why=str(error)) from None


def _span_of(lines: Sequence[str], name: str) -> tuple[int, int]:
    """Return where a section begins and ends; a comment before the next one belongs to that."""
    spellings = (name, _key(name), json.dumps(name), f"'{name}'")
    own = {f"[{_SERVERS}.{one}" for one in spellings}
    heads = [(at, re.sub(r"\s", "", line)) for at, line in enumerate(lines) if _HEADER.match(line)]
    first = next((at for at, head in heads if head.partition("]")[0] in own), None)
    if first is None:
        return 0, 0
    deeper = tuple(f"{one}." for one in own)
    others = (at for at, head in heads if at > first and not head.startswith(deeper))
    last = next(others, len(lines))
    while lines[last - 1].strip() == "" or lines[last - 1].lstrip().startswith("#"):
        if lines[last - 1].startswith(_MARK):
            break
        last -= 1
    return first, last


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: object) -> str:
    """Write a value as TOML."""
    if isinstance(value, dict):
        members = (f"{_key(key)} = {_value(one)}" for key, one in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
