"""``mcp-tool-filter clients``, ``wrap`` and ``unwrap``: the servers in the files of your clients.

``wrap`` puts the filter in front of a server in a client's file, and ``unwrap`` undoes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.config_file import NOT_OF_A_SERVER, parse_file
from mcp_tool_filter.cli.flags import (
    COMMAND,
    WORDS,
    Given,
    UsageError,
    no_such,
    parse_flags,
    typed_as,
)
from mcp_tool_filter.cli.launcher import refuse_what_needs_http
from mcp_tool_filter.cli.options import CHOICE, OPTIONS
from mcp_tool_filter.cli.settings import (
    Settings,
    Sources,
    default_file,
    gather,
    is_on,
    settle,
    texts_of,
)
from mcp_tool_filter.cli.terminal import count, print_table, progress, say
from mcp_tool_filter.core.errors import StartError, UnsetVariable
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.start import refuse_start
from mcp_tool_filter.rooms.clients import entries, moving, one_entry
from mcp_tool_filter.rooms.clients.changes import Change, Changes
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.files import BadFile
from mcp_tool_filter.rooms.clients.filtering import (
    Filtered,
    filtering_of,
    home_variables,
    settings_of,
)
from mcp_tool_filter.rooms.clients.listed import ListedServer, Moved, find_servers, warn_of
from mcp_tool_filter.rooms.clients.moving import ServersFile

if TYPE_CHECKING:
    from mcp_tool_filter.cli.commands.look import KnownTools
    from mcp_tool_filter.cli.dead import DeadPatterns


def run(typed: Given) -> int:
    """Print the list; return the exit status."""
    found = list(find_servers())
    if "json" in typed:
        print(json.dumps([_as_json(one) for one in found], indent=2))
    elif found:
        head = ("CLIENT", "SCOPE", "SERVER", "FILTERED", "COMMAND OR URL", "POLICY")
        print_table(head, list(map(_row, found)))
    else:
        say("No MCP servers found in any client's file")
    return 0


def _row(one: ListedServer) -> tuple[str, ...]:
    said = filtering_of(one.entry)
    target = shown(one.target)
    return one.place.client, one.place.scope, shown(one.name), said.answer, target, said.policy


def _as_json(one: ListedServer) -> dict[str, object]:
    said = filtering_of(one.entry)
    return {
        "client": one.place.client,
        "scope": one.place.scope,
        "file": str(one.place.file),
        "server": one.name,
        "target": one.target,
        "filtered": said.answer is not Filtered.NO,
        "shadow": said.answer is Filtered.WATCHED,
        "answer": said.answer,
        "by": said.by,
        "flags": entries.flags_of(one.entry),
    }


_PATIENCE = "15000"  # milliseconds for a server to answer


def run_wrap(typed: Given) -> int:
    """Wrap a server, or all of a client; return the exit status."""
    found, others = _find(typed)
    if "pick" in typed and len(found) > 1:
        raise UsageError("--pick is for one server", why="Leave out --all, or name its --scope")
    _refuse_no_policy(typed, found)
    picked = _picked_flags(found[0], typed) if "pick" in typed else None
    if picked == []:
        say("Nothing changed")
        return 1
    how = How.REPLACE if "replace" in typed else How.ADD
    if "into" in typed and "all" in typed:
        return wrap_as_one(found, _typed_flags(typed), typed, how)
    if picked is None:
        status = wrap_all(found, _typed_flags(typed), typed, how)
    else:
        status = wrap_all(found, picked, typed, How.EXACTLY)
    for one in [] if status and len(found) == 1 else others:
        place = one.place
        say(
            f"Warning: {place.client} also lists {one.name} in {place.file}, without the filter."
            f" It may use that one: add --scope {place.scope}, or --scope all for both"
        )
    return status


class How(Enum):
    """What happens to the policy that a server has already."""

    ADD = "new flags are added"
    REPLACE = "flags that say what is hidden replace it"
    EXACTLY = "the flags are all that it shall have"


type Asked = Mapping[tuple[object, ...], KnownTools | None]
"""What servers that were asked have said, by the keys of their entries; None if nothing."""


def wrap_all(
    found: Sequence[ListedServer],
    flags: Sequence[str] | Mapping[tuple[object, ...], Sequence[str]],
    typed: Given,
    how: How = How.ADD,
    *,
    asked: Asked | None = None,
) -> int:
    """Put the filter with these flags in front of each; return the exit status.

    A server that is filtered keeps its flags and gets these, unless they replace its policy. If
    there are several, a server that cannot be wrapped stops no other. Servers that were ``asked``
    are not asked again.
    """
    changes, status = Changes(typed), 0
    each = flags if isinstance(flags, Mapping) else {one.key: flags for one in found}
    wanted = {} if isinstance(flags, Mapping) else parse_flags(flags)
    shared = _share(found, wanted, typed, changes) if typed.get("into") else {}
    for listed in found:
        try:
            own = parse_flags(each[listed.key])
            changes.all.append(_wrapping(listed, own, typed, shared, changes, how))
        except StartError as error:
            if len(found) == 1:
                raise
            say(f"Warning: {listed.name} stays as it is: {error.one_line}")
            status = 1
    if "pick" not in typed:
        refused = _say_what_is_hidden(changes, asked, is_named="all" not in typed)
        changes.all = [one for one in changes.all if one not in refused]
        status = 1 if refused else status
    if how is How.ADD:
        _refuse_to_show(changes, typed)
    return (changes.carry_out() if changes.all else 1) or status


def _wrapping(
    listed: ListedServer,
    wanted: Given,
    typed: Given,
    shared: Mapping[str, object],
    changes: Changes,
    how: How,
) -> Change:
    """Return how an entry gets these flags. Raises StartError."""
    into, before = typed.get("into", [""])[-1], listed.moved()
    stays = before is not None and bool(into) and before.is_in(into)
    old = policy_of(listed, is_leaving=not stays)
    is_new = how is How.EXACTLY or (how is How.REPLACE and _is_whole(wanted))
    new = wanted if is_new else _added(old, wanted, may_replace=how is How.REPLACE)
    flags = [word for name, values in new.items() for word in typed_as(name, values)]
    wrapped, section = entries.wrap(listed.original(), flags, _program(listed), listed.mark), None
    _refuse_a_bad_start(wrapped)
    if into:
        wrapped, section = _move(listed, _not_shared(new, shared), into, changes)
        with suppress(UnsetVariable):  # the client may know it
            settings_in(section)
    change = Change(listed, wrapped, section)
    if entries.is_filtered(listed.entry) and not _only_hides_more(old, new):
        change.shows = (_UNKNOWN,)  # until its tools are known
    return change


def _not_shared(given: Given, shared: Mapping[str, object]) -> Given:
    """Return flags without what the file says for all servers."""
    left: Given = {}
    for name, values in given.items():
        there = shared.get(name, [])
        rest = [one for one in values if one not in there] if isinstance(there, list) else []
        left |= {name: rest} if rest else {}
    return left


_UNKNOWN = "tools that are not known, because the server was not asked"


def _is_whole(given: Given) -> bool:
    """Tell whether flags say what is hidden, and not only what is not."""
    return not {*CHOICE, "lock"}.difference(("except", "ignore-case")).isdisjoint(given)


def policy_of(listed: ListedServer, *, is_leaving: bool = True) -> Given:
    """Return the flags that an entry has now, also those in the section that it starts; with those
    for all servers of that file, if it leaves the file. Raises StartError."""
    own = parse_flags(entries.flags_of(listed.entry))
    if (there := listed.moved()) is None:
        return own
    file = parse_file(str(there.file.path), there.file.text.encode())
    words, _ = entries.start_of(listed.entry)
    mine = {name: each for name, each in parse_flags(words).items() if name not in _PLACES}
    section = {name: each for name, each in file.section(there.name).items() if name in OPTIONS}
    for source in (file.top if is_leaving else {}, section):
        kept = {name: each for name, each in source.items() if name in _OF_POLICY}
        mine = _added(kept, mine)
    return mine


_PLACES = ("server", "config", "stdio")
_OF_POLICY = frozenset(OPTIONS) - NOT_OF_A_SERVER - {"upstream", "env", "cwd", "header", COMMAND}


def _added(old: Given, new: Given, *, may_replace: bool = False) -> Given:
    """Return old flags with new ones. Raises UsageError if that would replace a file of rules."""
    merged = {name: values for name, values in old.items() if name in new or name != "shadow"}
    if not _is_whole(new):
        merged = dict(old)  # else what is hidden from now on is really hidden
    for name, values in new.items():
        before = old.get(name, [])
        if OPTIONS[name].many:
            merged[name] = list(dict.fromkeys([*before, *values]))
            continue
        if OPTIONS[name].protects and before not in ([], values) and not may_replace:
            what = f"The server has --{name} {before[-1]} already"
            raise UsageError(what, why=f"Add --replace to use {values[-1]} in its place")
        merged[name] = values
    return merged


def _only_hides_more(old: Given, new: Given) -> bool:
    """Tell whether flags hide all that others hide, whatever the tools are."""
    if old.get("shadow"):
        return True
    kept = all({*old[name]} <= {*new.get(name, ())} for name in old if name in _HIDE)
    more = any({*new.get(name, ())} - {*old.get(name, ())} for name in _SHOW)
    allows = "allow" not in old or old["allow"] == new.get("allow")
    return kept and allows and not more


_HIDE = frozenset({*CHOICE, "lock", "rules"}) - {"except", "allow", "ignore-case"}
_SHOW = ("except", "shadow", "new-tools", "ignore-case")


def _share(
    found: Sequence[ListedServer], wanted: Given, typed: Given, changes: Changes
) -> dict[str, object]:
    """Write what is wanted for all into the file of servers, once at its top; return it.

    What the file says of other servers must not change, so it is only there if it has no others,
    or says the same already. The policy of one server is its own.
    """
    file = ServersFile.read(typed["into"][-1])
    text = changes.text_of(file)
    top, mine = moving.top_of(text), set()
    for one in found:
        there = one.moved()
        if there and there.file.path == file.path:
            mine.add(there.name)
        mine |= set(_sections_of(one, file, text))
    is_for_all = "all" in typed or len(found) > 1
    may_write = is_for_all and moving.servers_in(text).keys() <= mine
    shared: dict[str, object] = {}
    more: dict[str, object] = {}
    for name, value in _as_toml(wanted).items():
        before = top.get(name)
        if name not in _SHARED:
            continue
        if isinstance(before, list) and isinstance(value, list):
            value = list(dict.fromkeys([*before, *value]))
        if before == value:
            shared[name] = value
        elif may_write and (before is None or moving.is_ours_at_top(text, name)):
            shared[name] = more[name] = value
    if more:
        changes.rewrite(file, moving.with_top(text, more))
    return shared


_SHARED = frozenset({*CHOICE}) - {"except", "ignore-case"}
"""What only hides more, so that it may count for all servers of a file."""


def _as_toml(given: Given) -> dict[str, object]:
    """Return flags as the members of a table."""
    return {
        name: (values if OPTIONS[name].many else values[-1])
        if OPTIONS[name].value
        else is_on({name: values[-1]}, name)
        for name, values in given.items()
    }


def _move(
    listed: ListedServer, flags: Given, path: str, changes: Changes
) -> tuple[ServerEntry, Moved]:
    """Return the new entry of the client, and the section for the old one. Raises StartError."""
    original, file = listed.original(), ServersFile.read(path)
    text = changes.text_of(file)
    name, policy, own = _section_for(text, listed, original, flags)
    is_there = moving.moved_from(text, name, listed.origin) is not None
    if not is_there or policy != moving.policy_in(text, name):
        text = moving.with_section(text, name, original, policy, listed.origin)
    changes.rewrite(file, text)
    words = [*_program(listed), "--server", name, *_naming(file, path)]
    entry = moving.entry_for(original, [*words, *own])
    return entries.with_key(entry, listed.mark), Moved(file, name, original, text)


def _section_for(
    text: str, listed: ListedServer, original: ServerEntry, flags: Given
) -> tuple[str, dict[str, object], list[str]]:
    """Return the name of the section for an entry and its policy, and the flags that are for the
    process. Raises StartError."""
    for name in ("config", "server"):
        if name in flags:
            raise UsageError(f"--into writes --{name} itself", why=f"Leave out --{name}")
    own: list[str] = []
    for name in [one for one in flags if one in NOT_OF_A_SERVER]:
        own += typed_as(name, flags[name])
    policy = _as_toml({name: flags[name] for name in flags if name not in NOT_OF_A_SERVER})
    if moving.moved_from(text, listed.named[0], listed.origin) is not None:
        there = moving.policy_in(text, listed.named[0])
        others = {key: value for key, value in there.items() if key not in _OF_POLICY}
        return listed.named[0], others | policy, own
    if (like := moving.section_like(text, original, listed.origin)) is None:
        return moving.free_name(text, listed.name), policy, own
    # It is another client's, too: its policy stays, and this one is added.
    there = moving.policy_in(text, like)
    for key, value in policy.items():
        had = there.get(key)
        if isinstance(value, list) and isinstance(had, list):
            policy[key] = list(dict.fromkeys([*had, *value]))
    return like, there | policy, own


def _naming(file: ServersFile, path: str) -> list[str]:
    """Return the flag that names a file of servers, unless it is the default one."""
    default = default_file(os.environ, may_be_missing=True)
    if default is not None and os.path.realpath(default) == str(file.path):
        return []
    return ["--config", os.path.abspath(os.path.expanduser(path))]


# One entry for all servers


def wrap_as_one(
    found: Sequence[ListedServer],
    flags: Sequence[str],
    typed: Given,
    how: How = How.ADD,
    *,
    asked: Asked | None = None,
) -> int:
    """Move all entries into a file of servers, and leave one for each client that starts all."""
    groups: dict[Path, list[ListedServer]] = {}
    for one in found:
        if not _starts_all(one):
            groups.setdefault(one.place.file, []).append(one)
    changes, wanted, is_all = Changes(typed), parse_flags(flags), True
    if not groups and not wanted:
        say(f"Nothing to do: {found[0].place.file} starts all servers with one entry")
        return 0
    shared = _share(found, wanted, typed, changes)
    for one in found:
        if wanted and _starts_all(one):
            _add_to_sections(one, wanted, typed, how, changes, shared)
    for group in groups.values():
        is_all = _wrap_file(group, wanted, typed, how, changes, shared) and is_all
    _say_what_is_hidden(changes, asked, is_named=False)
    changes.all = []  # their entries are gone
    return changes.carry_out() or (0 if is_all else 1)


def _sections_of(listed: ListedServer, file: ServersFile, text: str) -> list[str]:
    """Return the sections of a file that one entry for all starts, and ``wrap`` has made of this
    client's entries."""
    default = default_file(os.environ, may_be_missing=True) or ""
    path = one_entry.file_of(listed.entry, default)
    if path is None or os.path.realpath(os.path.expanduser(path)) != str(file.path):
        return []
    names = moving.servers_in(text)
    return [one for one in names if moving.listed_as(text, one, listed.origin)]


def _add_to_sections(
    listed: ListedServer,
    wanted: Given,
    typed: Given,
    how: How,
    changes: Changes,
    shared: Mapping[str, object],
) -> None:
    """Add flags to all sections that one entry starts. Raises StartError."""
    servers = ServersFile.read(typed["into"][-1])
    before = parse_file(str(servers.path), servers.text.encode())
    text = changes.text_of(servers)
    for name in _sections_of(listed, servers, text):
        if (original := moving.moved_from(text, name, listed.origin)) is None:
            continue
        section = before.section(name)
        old = {key: one for key, one in section.items() if key in _OF_POLICY}
        is_new = how is How.REPLACE and _is_whole(wanted)
        new = wanted if is_new else _added(old, wanted, may_replace=how is How.REPLACE)
        if how is How.ADD and not _only_hides_more(old, new):
            what = f"This could show tools of {name} that are hidden now"
            raise UsageError(what, why="Nothing was changed. To show them, add --replace")
        kept = moving.policy_in(text, name)
        others = {key: one for key, one in kept.items() if key not in _OF_POLICY}
        policy = others | _as_toml(_not_shared(new, shared))
        if policy != kept:
            as_before = moving.listed_as(text, name, listed.origin)
            text = moving.with_section(text, name, original, policy, listed.origin, as_before)
        own = replace(listed, name=name, entry=original)
        changes.all.append(Change(own, original, Moved(servers, name, original, text)))
    changes.rewrite(servers, text)


def _wrap_file(
    found: Sequence[ListedServer],
    wanted: Given,
    typed: Given,
    how: How,
    changes: Changes,
    shared: Mapping[str, object],
) -> bool:
    """Leave one entry in a client's file; tell whether all the others have moved."""
    group = {one.name: one for one in found}
    path, listed = typed["into"][-1], found[0]
    servers = ServersFile.read(path)
    process: list[str] = []

    def move(name: str, entry: ServerEntry, text: str) -> str:
        one = group[name]
        if (before := one.moved()) is not None and before.is_in(path) and not wanted:
            return moving.marked(text, before.name, one.origin, name)
        if before is not None or entries.is_filtered(entry):
            raise entries.CannotWrap("It is filtered already", why="Unwrap it first")
        old = policy_of(one)
        is_new = how is How.REPLACE and _is_whole(wanted)
        new = wanted if is_new else _added(old, wanted, may_replace=how is How.REPLACE)
        could_show = entries.is_filtered(one.entry) and not _only_hides_more(old, new)
        if how is How.ADD and could_show:
            why = "Unwrap it first, or add --replace"
            raise entries.CannotWrap("This could show tools that are hidden now", why=why)
        section, policy, own = _section_for(text, one, entry, _not_shared(new, shared))
        text = moving.with_section(text, section, entry, policy, one.origin, name)
        moved = Moved(servers, section, entry, text)
        with suppress(UnsetVariable):  # the client may know it
            settings_in(moved)
        changes.all.append(Change(one, one.entry, moved))
        process.extend(word for word in own if word not in process)
        return text

    words = [*_program(listed), *one_entry.START, *_naming(servers, path)]
    originals = {name: one.original() for name, one in group.items()}
    change, is_all = one_entry.with_one(
        listed.file, originals, words, servers, changes.text_of(servers), move, process
    )
    changes.rewrite(servers, change.sections)
    changes.replace_all(change)
    return is_all


def _starts_all(listed: ListedServer) -> bool:
    return one_entry.file_of(listed.entry, "-") is not None


def _is_ours(listed: ListedServer) -> bool:
    return listed.is_undoable or _starts_all(listed)


def _refuse_to_show(changes: Changes, typed: Given) -> None:
    """Refuse to show what is hidden now, unless the user has said so or will be asked."""
    shows = [one for one in changes.all if one.shows]
    if not shows or "yes" not in typed or "dry-run" in typed:
        return
    tools = "; ".join(f"{one.listed.name}: {', '.join(map(shown, one.shows))}" for one in shows)
    what = f"This would show tools that are hidden now: {tools}"
    raise UsageError(what, why="Nothing was changed. To show them, add --replace")


def run_unwrap(typed: Given) -> int:
    """Restore a server, or all of a client, or all of all clients; return the exit status."""
    if "all" in typed and not typed.get(WORDS):
        return unwrap_all([one for one in find_servers() if _is_ours(one)], typed)
    found, _ = _find(typed, of_several=lambda one: one.is_undoable)
    if "all" in typed:
        found = [one for one in found if _is_ours(one)] or found[:1]
    return unwrap_all(found, typed)


def unwrap_all(found: Sequence[ListedServer], typed: Given) -> int:
    """Restore these servers; return the exit status."""
    if not found:
        say("Nothing to do: no server is wrapped in any client's file")
        return 0
    changes, status = Changes(typed), 0
    known = set()
    whole = {one.place.file for one in found if _starts_all(one)}
    later = [one.key for one in found if one.place.file in whole and not _starts_all(one)]
    for listed in found:
        if listed.key in known or listed.key in later:  # two clients read the same file
            continue
        known.add(listed.key)
        try:
            if _starts_all(listed):
                default = default_file(os.environ, may_be_missing=True) or ""
                path = one_entry.file_of(listed.entry, default) or default
                changes.bring_back(listed, ServersFile.read(path))
            else:
                changes.all.append(Change(listed, listed.original()))
        except StartError as error:
            if len(found) == 1:
                raise
            say(f"Warning: {listed.name} stays as it is: {error.one_line}")
            status = 1
    status = (changes.carry_out() if changes.has_some else 0) or status
    if status or not later:
        return status
    return unwrap_all([one for one in find_servers() if one.key in later], typed)


def _settings_for(listed: ListedServer, flags: Sequence[str], patience: str = "") -> Settings:
    """Return settings that start the server as the client would, filtered with these flags."""
    settings = settings_of(entries.wrap(listed.original(), flags, ["mcp-tool-filter"]), patience)
    return replace(settings, name=listed.name)


def bare_settings_of(listed: ListedServer) -> Settings:
    """Return the settings for a server as its client starts it: nothing is filtered. Raises
    StartError."""
    return settings_of(entries.wrap(listed.entry, [], ["mcp-tool-filter"]), is_bare=True)


def _say_what_is_hidden(changes: Changes, asked: Asked | None, *, is_named: bool) -> list[Change]:
    """Ask the servers once: a pattern that hides nothing, or everything, is seldom meant. Return
    the changes with which the filter would not start.

    A project's file may come from anybody: we start its command only if the user has named it.
    """
    to_ask: list[Change] = []
    for one in changes.all:
        if not is_named and one.listed.place.scope == "project":
            why = "it is in a project's file; wrap it by its name"
            say(f"{one.listed.name} was not asked for its tools: {why}")
        else:
            to_ask.append(one)
    refused: list[Change] = []
    counted: list[tuple[str, KnownTools]] = []
    sections, silent = set(), len(changes.all)
    for one, known in zip(to_ask, _ask_all(to_ask, changes, asked), strict=True):
        name = one.listed.name
        if isinstance(known, StartError):
            say(f"{name} was not asked for its tools, or did not answer: {known.why}")
            continue
        if not known.who.is_listed:
            say(f"{name} lists its tools only after a login")
            continue
        try:
            refuse_start(known.config, [known.snapshot])
        except StartError as error:
            if len(changes.all) == 1:
                raise
            say(f"Warning: {name} stays as it is: {error.one_line}")
            refused.append(one)
            silent -= 1
            continue
        if one.shows:
            one.shows = _shown_now(one.listed, known)
        if one.section and (one.section.file.path, one.section.name) in sections:
            silent -= 1
            continue  # another client starts the same
        if one.section:
            sections.add((one.section.file.path, one.section.name))
        counted.append((name, known))
        silent -= 1
    _say_of_each(counted, silent, is_named=is_named)
    return refused


def _say_of_each(counted: Sequence[tuple[str, KnownTools]], silent: int, *, is_named: bool) -> None:
    """Say what the servers that have answered hide; so many have not."""
    from mcp_tool_filter.cli.dead import DeadPatterns, PatternHolder  # seldom needed

    patterns = [one for _, known in counted for one in known.config.patterns]
    holders = [PatternHolder(known.config.patterns, known.snapshot) for _, known in counted]
    dead = DeadPatterns([*holders, *[PatternHolder(patterns, None)] * silent])
    for name, known in counted:
        _say_of(known, "" if is_named else f"{name}: ", dead)
    for each in dead.shared:
        say(f"Warning: {each.says}")
    if not is_named and counted:
        say(_in_all([known for _, known in counted]))


def _in_all(counted: Sequence[KnownTools]) -> str:
    """Return one sentence about all servers."""
    from mcp_tool_filter.cli.report import tokens_in

    tools = [tool for one in counted for tool in one.tools]
    kept = [tool for one in counted for tool in one.exposed]
    before, after = (
        f"{count(len(found), 'tool')}, {sum(tokens_in(tool.size) for tool in found):,} tokens"
        for found in (tools, kept)
    )
    servers = count(len(counted), "server")
    return f"{servers}: {before} in every conversation; with the filter {after}"


def _ask_all(
    found: Sequence[Change], changes: Changes, known: Asked | None
) -> list[KnownTools | StartError]:
    """Ask the servers as they would be filtered, side by side."""
    from mcp_tool_filter.cli.commands.look import ask, ask_now  # unwrap need not wait for it

    def settings(one: Change) -> Settings:
        if one.section:
            text = changes.text_of(one.section.file)
            return settings_in(replace(one.section, text=text))
        flags = entries.flags_of(one.entry)
        return _settings_for(one.listed, flags, _PATIENCE)

    def judged(one: Change) -> KnownTools | StartError:
        before = known.get(one.key) if known else None
        try:
            return before.by(settings(one).config()) if before else _SILENT
        except StartError as error:
            return error

    if known is not None:
        return list(map(judged, found))

    async def asked(one: Change) -> KnownTools | StartError:
        async with gate:
            try:
                return await ask(settings(one), is_quiet=True)
            except StartError as error:
                return error

    async def all_asked() -> list[KnownTools | StartError]:
        return await asyncio.gather(*map(asked, found))

    if len(found) == 1:
        try:
            return [ask_now(settings(found[0]))]
        except StartError as error:
            return [error]
    gate = asyncio.Semaphore(_AT_ONCE)
    with progress(f"Asking {count(len(found), 'server')} for their tools …"):
        return asyncio.run(all_asked())


_AT_ONCE = 16  # servers that are asked at the same time
_SILENT = StartError("It did not answer", why="it has not answered before")


def _shown_now(listed: ListedServer, known: KnownTools) -> tuple[str, ...]:
    """Return which of the tools are hidden now and would be shown."""
    try:
        now = known.by(settings_of(listed.entry, _PATIENCE).config())
    except StartError:  # the filter does not start now
        return ()
    shown_before = {one.name for one in now.exposed}
    return tuple(one.name for one in known.exposed if one.name not in shown_before)


def _say_of(known: KnownTools, start: str, dead: DeadPatterns) -> None:
    """Say what the filter would do with a server's tools."""
    from mcp_tool_filter.cli.commands.look import marks_of
    from mcp_tool_filter.cli.report import counted_items

    items = known.snapshot.catalog
    hidden = len(known.snapshot.denied)
    would = "would be " if known.who.is_shadow else ""
    say(f"{start}{count(len(known.tools), 'tool')}: {hidden} {would}hidden")
    if said := marks_of(one.mark for one in known.tools if one.is_exposed):
        say(f"{start or 'The others: '}{said}")
    for _, said in counted_items(items, is_shadow=known.who.is_shadow):
        say(start + said)
    warnings = []
    if known.who.is_shadow:
        warnings.append("Warning: nothing is enforced: with --shadow, the filter only reports")
    if known.tools and not (hidden or any(one.pattern for one in items)):
        warnings.append("Warning: no tool is hidden")
    for warning in [*warnings, *dead.warnings_in(known.snapshot)]:
        say(f"Warning: {start}{warning.removeprefix('Warning: ')}")


def settings_in(section: Moved) -> Settings:
    """Return the settings of a server in a file that is not saved yet. Raises StartError."""
    file = parse_file(str(section.file.path), section.text.encode())
    sources = Sources(file, {}, {"connection-timeout": [_PATIENCE]}, os.environ)
    return sources.of_server(section.name, is_stdio=True)


def _picked_flags(listed: ListedServer, typed: Given) -> list[str]:
    """Let the user pick tools, those that are hidden now marked; return the flags, or nothing."""
    from mcp_tool_filter.cli.commands.look import ask_now, choose

    given = policy_of(listed)
    before = [word for name, values in given.items() for word in typed_as(name, values)]
    known = ask_now(_settings_for(listed, before))
    if (hidden := choose(known.tools)) is None:
        return []
    return [*flags_hiding(listed, known, hidden), *_typed_flags(typed)]


def flags_hiding(listed: ListedServer, known: KnownTools, hidden: Sequence[str]) -> list[str]:
    """Return the flags of a server that shall hide exactly these tools. Raises StartError.

    A pattern that is there stays: it may be meant for tools that come later.
    """
    from mcp_tool_filter.cli.switching import hinted_in, switched
    from mcp_tool_filter.core.policy.choice import NOT_ALLOWED

    names = [one.name for one in known.tools]
    not_allowed = [name for name, by in known.snapshot.denied.items() if by is NOT_ALLOWED]
    is_narrow = bool(not_allowed) and all(name in hidden for name in not_allowed)
    covered = not_allowed if is_narrow else []  # else allow goes
    changed = switched(
        known.config.choice,
        names,
        hide=[name for name in hidden if name not in covered],
        show=[name for name in names if name not in hidden],
        hinted=hinted_in(known.snapshot),
    )
    patterns = [(one.option, one.text) for one in changed.kept]
    patterns += [("deny", text) for text in changed.more]
    patterns += [("except", text) for text in changed.exceptions]
    flags = [word for name, text in patterns for word in (f"--{name.replace('_', '-')}", text)]
    gone = ("deny", "deny-glob", "except", *(() if is_narrow else ("allow",)))
    for name, values in policy_of(listed).items():
        flags += typed_as(name, values) if name not in gone else []
    return flags


def _refuse_no_policy(typed: Given, found: Sequence[ListedServer]) -> None:
    """Refuse patterns that are wrong, and to wrap a server without one."""
    from mcp_tool_filter.cli.parsing import parse_config

    config = parse_config(texts_of(typed, (*CHOICE, "lock")))
    is_enough = "into" in typed or "pick" in typed or not config.denies_nothing
    if not is_enough and all(entries.is_wrapped(one.entry) for one in found):
        is_enough = bool(_typed_flags(typed))  # a wrapped server keeps its policy
    if not is_enough:
        why = "Or what to keep: --allow PATTERN, --read-only; or choose in the terminal: --pick"
        raise UsageError("Say what to hide: --deny PATTERN", why=why)


def _typed_flags(typed: Given) -> list[str]:
    # The client starts the filter in a folder that we do not know.
    locks = [os.path.abspath(os.path.expanduser(file)) for file in typed.get("lock", ())]
    more = typed.get("flag", [])
    parse_flags(more)
    flags = [word for name in (*CHOICE, "shadow") for word in typed_as(name, typed.get(name, ()))]
    return [*flags, *typed_as("lock", locks), *more]


def _refuse_a_bad_start(wrapped: ServerEntry) -> None:
    """Refuse what the filter would not start with: the client would only show a failed server."""
    words, variables = entries.start_of(wrapped)
    known = {name: _with_values(text) for name, text in variables.items()}
    given = gather(parse_flags([_with_values(word) for word in words]), home_variables() | known)
    if typed := [name for name in given if name in OPTIONS and OPTIONS[name].only_typed]:
        raise UsageError(f"--{typed[0]} does not filter: leave it out")
    refuse_what_needs_http(given)
    settings = settle(given)
    if not settings.is_stdio:
        raise UsageError("A client talks over stdio: leave out --port and --inspect")
    settings.config()


def _with_values(text: str) -> str:
    """Return a text with some value for what only the client knows."""
    if re.match(r"(https?:|\$)", text) and "$" in text:
        return "http://localhost"
    return re.sub(r"\$\{(?:[^$}]|\$+[^${}])*\$*\}", "1", text)


def _find(
    typed: Given, of_several: Callable[[ListedServer], bool] = lambda _one: False
) -> tuple[list[ListedServer], list[ListedServer]]:
    """Return the entries that are meant: one, or with --all or --scope all several.

    If several have the name, the only one that is ``of_several`` is meant.
    Return also other entries with their names that are not filtered: the client may use those.
    """
    client, *named = typed.get(WORDS) or [""]
    scope = typed.get("scope", [""])[-1]
    unreadable: list[BadFile] = []
    in_client = list(find_servers(client, unreadable.append))
    if unreadable and not in_client:
        raise unreadable[0]
    for error in unreadable:
        warn_of(error)
    in_scope = [one for one in in_client if scope in ("", "all", one.place.scope)]
    if bool(named) == ("all" in typed):
        why = "mcp-tool-filter clients lists them; --all means all of a client"
        raise UsageError("Name the client and the server: CLIENT SERVER", why=why)
    if not in_client:
        raise UsageError(f"{client} has no MCP servers", why="mcp-tool-filter clients shows all")
    server = named[0] if named else ""
    found = [one for one in in_scope if not server or one.name == server]
    listed = [one for one in in_client if not server or one.name == server]
    scopes = " or ".join(f"--scope {one.place.scope}" for one in listed)
    if not listed:
        known = sorted({one.name for one in in_client})
        kind = f"server of {client} called"
        raise no_such(kind, server, known, help="mcp-tool-filter clients")
    if not found:
        what = f"{client} does not list {server or 'a server'} in scope {scope}"
        raise UsageError(what, why=f"Try {scopes}")
    is_one = bool(server) and scope != "all"
    if is_one and len(fitting := list(filter(of_several, found))) == 1:
        found = fitting
    if is_one and len(found) > 1:
        why = f"Add {scopes}, or --scope all for all of them"
        raise UsageError(f"{client} lists {server} {len(found)} times", why=why)
    names = [one.name for one in found]
    others = [one for one in in_client if one not in found and one.name in names]
    return found, [one for one in others if not entries.is_filtered(one.entry)]


def _program(listed: ListedServer) -> list[str]:
    """Return the command that starts the filter: its name in a shared file, else its path.

    Desktop programs do not have the shell's PATH.
    """
    found = shutil.which("mcp-tool-filter")
    if listed.place.scope == "project" and found:
        return ["mcp-tool-filter"]
    beside = Path(sys.executable).parent / "mcp-tool-filter"
    if path := found or shutil.which(beside):
        return [str(Path(path).absolute())]
    return [sys.executable, "-m", "mcp_tool_filter"]
