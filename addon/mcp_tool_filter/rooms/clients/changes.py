"""Change several entries at once: one diff over all files, one question, then all are saved.

A new section is in its file of servers before a client names it, and an old one goes after.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep

from mcp_tool_filter.cli.commands.schema import first_line
from mcp_tool_filter.cli.flags import Given, UsageError
from mcp_tool_filter.cli.options import ENTRY
from mcp_tool_filter.cli.terminal import Colour, is_terminal, paint, say
from mcp_tool_filter.core.errors import StartError, safe_lines
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.rooms.clients import entries, files, moving, one_entry
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.files import BadFile, ClientFile, EditedFile
from mcp_tool_filter.rooms.clients.filtering import Filtered, filtering_of
from mcp_tool_filter.rooms.clients.listed import ListedServer, Moved, find_servers
from mcp_tool_filter.rooms.clients.moving import ServersFile
from mcp_tool_filter.rooms.clients.one_entry import ClientChange
from mcp_tool_filter.rooms.secrets.shown import secrets_in_words

_MOST_TRIES = 20
_PAUSE = 0.05  # seconds between them
_SHORTEST_SECRET = 4  # characters
_NO_SECRETS = (entries.WAS, ENTRY)
_SECRETIVE = ("env", "envs", "environment", "headers", "http_headers")


@dataclass(slots=True)
class Change:
    """An entry of a client's file, and what shall be in its place."""

    listed: ListedServer
    entry: ServerEntry
    section: Moved | None = None
    """What the entry starts from now on."""
    shows: tuple[str, ...] = ()
    """Tools that are hidden now and would be shown."""

    @property
    def after(self) -> ListedServer:
        return replace(self.listed, entry=self.entry)

    @property
    def key(self) -> tuple[object, ...]:
        return self.listed.key


class Changes:
    """What shall change, in all files together."""

    def __init__(self, typed: Given) -> None:
        self._typed = typed
        self.all: list[Change] = []
        self._read: dict[Path, ServersFile] = {}
        self._texts: dict[Path, str] = {}
        """What each file of servers shall say before the clients' files are saved."""
        self._whole: dict[Path, ClientChange] = {}
        """Files of clients in which one entry starts all servers, or did."""
        self._later: dict[Path, str] = {}
        """What files of servers shall say after that, because such an entry is gone."""

    @property
    def has_some(self) -> bool:
        return bool(self.all or self._whole)

    def text_of(self, file: ServersFile) -> str:
        self._read.setdefault(file.path, file)
        text = self._texts.setdefault(file.path, file.text)
        return first_line("config") if file.raw is None and not text else text

    def rewrite(self, file: ServersFile, text: str) -> None:
        self.text_of(file)
        self._texts[file.path] = text

    def replace_all(self, one: ClientChange) -> None:
        """Let a client's file have one entry for all servers instead of one each."""
        self._whole[one.client.place.file] = one

    def bring_back(self, one: ListedServer, file: ServersFile) -> None:
        """Let a client's file have all its entries again, for the one that starts them."""
        self._read.setdefault(file.path, file)
        text = self._later.get(file.path, file.text)
        change = one_entry.without_one(one.file, one.name, file, text, one.origin)
        self._later[file.path] = change.sections
        self._whole[one.place.file] = change

    def is_leaving(self, one: ListedServer) -> bool:
        """Tell whether an entry starts no section, or another one, from now on."""
        changed = next((each for each in self.all if each.key == one.key), None)
        return changed is not None and changed.section is None

    def carry_out(self) -> int:
        """Show the changes, ask, and save; return the exit status."""
        servers = self._servers_after()
        clients = {path: self._text_after(path, list(found)) for path, found in self._by_file()}
        clients |= {path: one.text for path, one in self._whole.items()}
        is_same = all(text == self._before(path) for path, text in clients.items())
        if is_same and all(text == self._read[path].text for path, text in servers.items()):
            for one in self.all:
                place = one.listed.place
                say(f"Nothing to do: {one.listed.name} in {place.file} is {_state_of(one.after)}")
            if not self.all:
                say("Nothing to do: the file of servers says that already")
            return 0
        print(self._diff(clients, servers), flush=True)
        self._warn_of_shared()
        if "dry-run" in self._typed:
            self._say_what_is_shown()
            return 0
        if "yes" not in self._typed and not self._is_agreed():
            say("Nothing changed")
            return 1
        self._save(servers)
        self._say_what_now()
        return 0

    def _is_agreed(self) -> bool:
        self._say_what_is_shown()
        return agrees()

    def _say_what_is_shown(self) -> None:
        for one in self.all:
            if one.shows:
                names = ", ".join(map(shown, one.shows))
                say(f"Warning: {one.listed.name} would show what is hidden now: {names}")

    # What the files shall say

    def _by_file(self) -> Iterable[tuple[Path, list[Change]]]:
        found: dict[Path, list[Change]] = {}
        for one in self.all:
            found.setdefault(one.listed.place.file, []).append(one)
        return found.items()

    def _first(self, path: Path) -> ListedServer:
        return next(one.listed for one in self.all if one.listed.place.file == path)

    def _before(self, path: Path) -> str:
        whole = self._whole.get(path)
        return whole.client.text if whole else self._first(path).file.text

    def _text_after(self, path: Path, found: Iterable[Change]) -> str:
        text = self._first(path).file.text
        for one in found:
            if one.entry != one.listed.entry:
                text = _text_with(replace(one.listed.file, text=text), one.listed.name, one.entry)
        return text

    def _servers_after(self) -> dict[Path, str]:
        """Return what each file of servers says at the end: without what nobody needs."""
        texts = self._texts | self._later
        for one in self.all:
            old, new = one.listed.moved(), one.section
            if old is None or (new and (new.file.path, new.name) == (old.file.path, old.name)):
                continue
            self._read.setdefault(old.file.path, old.file)
            text = texts.setdefault(old.file.path, old.file.text)
            if old.name not in moving.servers_in(text):
                continue  # another user has left, too
            users = [
                each
                for each in find_servers(tell=lambda _error: None)
                if each.named[0] == old.name and old.is_in(each.named[1])
                if each.key != one.key and not self.is_leaving(each)
            ]
            if any(each.origin == one.listed.origin or not each.is_undoable for each in users):
                say(f"{old.file.path} keeps the section {old.name}, which another entry starts")
            else:
                texts[old.file.path] = moving.without_user(text, old.name, one.listed.origin)
        return texts

    # How they are saved

    def _save(self, servers: Mapping[Path, str]) -> None:
        saved: dict[Path, ServersFile] = {}
        for path, text in self._texts.items():
            if text != self._read[path].text:
                saved[path] = self._read[path].save(text, mode=self._most_readers(path))
        try:
            for _, found in self._by_file():
                _save(found)
            for one in self._whole.values():
                one.client.save(one.text, original=one.original)
        except BaseException:
            for path, file in saved.items():
                file.save(self._read[path].text)
            raise
        for path in saved:
            say(f"Saved {path}")
        for path, text in servers.items():
            file = saved.get(path, self._read[path])
            if text != file.text:
                file.save(text)
                say(f"Saved {path}")

    def _most_readers(self, path: Path) -> int:
        """Return what others may do with a file of servers: no more than with those files from
        which a secret moves into it."""
        mode = 0o777
        for one in self.all:
            is_into = one.section is not None and one.section.file.path == path
            if is_into and one.section and any(_secrets_in(one.section.original)):
                mode &= stat.S_IMODE(os.stat(one.listed.place.file).st_mode)
        for whole in self._whole.values():
            if whole.servers.path == path:
                mode &= stat.S_IMODE(os.stat(whole.client.place.file).st_mode)
        return mode

    # What people read

    def _diff(self, clients: Mapping[Path, str], servers: Mapping[Path, str]) -> str:
        edits = [(self._before(path), text, str(path)) for path, text in clients.items()]
        edits += [(self._read[path].text, text, str(path)) for path, text in servers.items()]
        # The lines around the change, or the same line, may be about other servers.
        known = [one.listed.file.whole() for one in self.all]
        known += [one.entry for one in self.all]
        known += [one.client.whole() for one in self._whole.values()]
        for path, text in servers.items():
            both = (moving.servers_in(self._read[path].text), moving.servers_in(text))
            known += [{"all": one} for one in both]
        return diff_of(edits, known)

    def _warn_of_shared(self) -> None:
        for one in self.all:
            place, program = one.listed.place, next(iter(entries.words_of(one.entry)), "")
            is_ours = one.section is not None or entries.is_wrapped(one.entry)
            if place.scope == "project" and is_ours and os.path.isabs(program):
                only = f"{program} is only on this machine"
                say(f"Warning: {place.file} may be shared, and {only}")

    def _say_what_now(self) -> None:
        for path in [*dict(self._by_file()), *self._whole]:
            say(f"Saved {path}")
            if (kept := files.backup_of(path)).exists():
                say(f"The file without the filter is kept at {kept}")
        wrapped = [one for one in self.all if one.after.is_undoable]
        all_at_once = [one.client.place.client for one in self._whole.values() if one.original]
        clients = list(dict.fromkeys(one.listed.place.client for one in wrapped)) or all_at_once
        if not clients:
            return
        undo = ["mcp-tool-filter", "unwrap"]
        if len(clients) == 1:
            undo += [clients[0], wrapped[0].listed.name if len(wrapped) == 1 else "--all"]
        else:
            undo += ["--all"]
        scopes = {one.listed.place.scope for one in wrapped}
        if len(clients) == len(scopes) == 1 and self._typed.keys() & {"scope", "all"}:
            undo += ["--scope", *scopes]  # others may have the name
        say(f"Restart {', '.join(clients)}. Undo: {shlex.join(undo)}")
        for one in wrapped:
            if entries.logs_in(one.after.original()):
                say("The client logged in to this server by itself. Now the filter needs a login:")
                say(f"mcp-tool-filter login {shlex.quote(one.after.target)}")


def diff_of(edits: Iterable[tuple[str, str, str]], known: Iterable[object]) -> str:
    """Return changes of files (old, new, name) as diffs with masked secrets, because they may be
    shown to others; those of what is ``known`` are secrets."""
    lines = [
        line
        for old, new, name in edits
        for line in difflib.unified_diff(
            old.splitlines(), new.splitlines(), name, "with the change", lineterm="", n=2
        )
    ]
    from mcp_tool_filter.rooms.secrets.finder import SecretFinder, redact

    secrets = {secret for one in known for secret in _secrets_in(one)}
    finder = SecretFinder(known=tuple(one.encode().decode("latin-1") for one in secrets))
    masked = redact("\n".join(lines), "***", finder).split("\n")
    return "\n".join(_coloured(safe_lines(line)) for line in masked)


def _save(found: list[Change]) -> None:
    """Save the changes of one file; make them again if a client saves it at the same time."""
    file = found[0].listed.file
    for _ in range(_MOST_TRIES):
        try:
            text = file.text
            for one in found:
                if one.entry != one.listed.entry:
                    place = replace(file, place=one.listed.place, text=text)
                    text = _text_with(place, one.listed.name, one.entry)
            return file.save(text, original=_without_filter(file, text))
        except EditedFile:
            sleep(_PAUSE)
            newer = files.read(file.place)
            try:
                is_same = newer is not None and all(_is_there(newer, one) for one in found)
            except BadFile:  # half of it is written
                continue
            if newer is None or not is_same:
                raise  # the entry itself is another one
            file = newer
    raise EditedFile(
        f"{file.place.file} is saved again and again", why="Close the client, and try again"
    )


def _is_there(file: ClientFile, one: Change) -> bool:
    servers = replace(file, place=one.listed.place).servers()
    return servers.get(one.listed.name) == one.listed.entry


def _state_of(listed: ListedServer) -> str:
    if listed.is_undoable:
        is_watched = filtering_of(listed.entry).answer is Filtered.WATCHED
        only = ", and only watched (--shadow)" if is_watched else ""
        return f"already wrapped like this{only}"
    return "filtered, but not by wrap" if entries.is_filtered(listed.entry) else "not wrapped"


def _text_with(file: ClientFile, name: str, entry: ServerEntry) -> str:
    """Return the file's text with another entry; if the backup has that, as it is spelt there."""
    backup, old = _backup_of(file), file.servers()[name]
    if backup is None:
        return file.with_entry(name, entry)
    try:
        if spelt := file.restored(name, backup, entry):
            return spelt
        # With one filter after another, comments would be lost.
        original = ListedServer(file, name, old).original()
        bare = file.restored(name, backup, original) if original != old else None
    except StartError:  # a broken backup
        bare = None
    return (ClientFile(file.place, b"", bare) if bare else file).with_entry(name, entry)


def _backup_of(file: ClientFile) -> ClientFile | None:
    try:
        raw = files.backup_of(file.place.file).read_bytes()
        return ClientFile(file.place, raw, raw.decode())
    except (OSError, UnicodeDecodeError):
        return None


def _without_filter(file: ClientFile, new: str) -> str | None:
    """Return the file as it would be without the filter; None if the new text is that."""
    is_needed, text = False, file.text
    for place in files.places(files.Whereabouts.of_this_process()):
        if place.file != file.place.file:
            continue
        # for example, of the user and of one project
        before, after = ClientFile(place, b"", file.text), ClientFile(place, b"", new)
        is_needed = is_needed or any(
            ListedServer(after, *one).is_undoable for one in after.servers().items()
        )
        for name, entry in before.servers().items():
            one = ListedServer(before, name, entry)
            if one.is_undoable:
                text = _text_with(ClientFile(place, b"", text), name, one.original())
    return text if is_needed else None


def agrees() -> bool:
    if not is_terminal(sys.stdin):
        raise UsageError("Cannot ask you: there is no terminal", why="Add --yes to make the change")
    print("Make this change? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _secrets_in(value: object) -> Iterator[str]:
    """Yield the values of all headers and variables, plain and as JSON spells them."""
    for key, member in value.items() if isinstance(value, dict) else ():
        if key in _SECRETIVE and isinstance(member, dict):
            yield from _spellings_of(member)
        elif key in ("args", "command") and isinstance(member, list):
            words = list(map(str, member))
            yield from _spellings_of({one: one for one in secrets_in_words(words)})
        elif key == "header" and isinstance(member, list):
            yield from _spellings_of(dict(str(one).partition(": ")[::2] for one in member))
        else:
            yield from _secrets_in(member)


def _spellings_of(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, str) and len(value) >= _SHORTEST_SECRET and name not in _NO_SECRETS:
            yield value
            yield json.dumps(value)[1:-1]
            yield json.dumps(value, ensure_ascii=False)[1:-1]


def _coloured(line: str) -> str:
    match line[:1]:
        case "+":
            return paint(line, Colour.GREEN)
        case "-":
            return paint(line, Colour.RED)
        case _:
            return line
