"""Running filters find each other through a private folder of sockets.

Each filter has a Unix socket in ``$XDG_RUNTIME_DIR/mcp-tool-filter``; without that variable, as on
macOS and in containers, in ``mcp-tool-filter/run`` below the user's folder for state. Readers look
in both: a client may start its servers with few variables. Who connects asks one question, a JSON
object on a line, gets one JSON object, and the connection is closed. ``status`` and the page ask
all of them; the page also for messages, and to switch tools.

A thread answers, because a relay has no event loop. Without a folder, or if it is not ours alone,
there is no socket: the filter works all the same, and says nothing. A filter that was killed leaves
its socket behind; the next reader removes it.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.options import ENTRY
from mcp_tool_filter.core.messages.sizes import MANY
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.process.statistics import JsonObject

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.config import Config
    from mcp_tool_filter.core.policy.snapshot import Snapshot
    from mcp_tool_filter.core.process.statistics import Statistics

FOLDER = "XDG_RUNTIME_DIR"
"""The variable that names a folder of the user for sockets."""
_PATIENCE = 1.0  # seconds for one filter to answer, or to take the question
_PAGE_PATIENCE = 4.0  # the first question of a page makes a filter import what answers it
_MOST_READ = 16 * 1024 * 1024
_MOST_ASKED = 16  # at the same time
_BACKLOG = 16
_QUESTION = 0.2  # seconds for an asker to send its question; an older one sends none
_LONGEST_QUESTION = 512 * 1024

_LONGEST_PATH = 80  # characters of a folder: the whole path of a socket has about 100

type Answer = Callable[[], JsonObject]
"""Returns what a filter says about itself; called in a thread."""
type AnswerPage = Callable[[JsonObject], JsonObject | bytes]
"""Returns what it says to the question of a page, as JSON or written as JSON already."""


def _state_folder() -> Path | None:
    """Return the folder for who has no ``XDG_RUNTIME_DIR``."""
    state, home = (os.environ.get(name, "") for name in ("XDG_STATE_HOME", "HOME"))
    base = Path(state) if state.startswith("/") else Path(home) / ".local" / "state"
    return base / "mcp-tool-filter" / "run" if base.is_absolute() else None


def own_folder(*, creates: bool = False) -> Path | None:
    """Return the folder of our own socket; None if there is none, or another user could change
    it."""
    if not hasattr(socket, "AF_UNIX"):
        return None
    base = os.environ.get(FOLDER, "")
    folder = Path(base) / "mcp-tool-filter" if base else _state_folder()
    if folder is None or not folder.is_absolute():
        return None
    try:
        if creates and not base:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.parent.chmod(0o700)  # it is ours alone, whatever the umask
        if not _is_safe_base(os.stat(folder.parent)):
            return None
        if creates:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
    except (OSError, ValueError):
        return None
    return folder if _is_private(folder) else None


def _own_folders() -> list[Path]:
    """Return all folders where sockets of this user may be."""
    found = [own_folder(), _state_folder()]
    return [one for one in dict.fromkeys(found) if one and _is_private(one)]


@contextmanager
def _reachable(folder: Path) -> Iterator[Path]:
    """Yield a path of the folder that is short enough for a socket in it: a home may be deep."""
    is_long = len(os.fsencode(folder)) > _LONGEST_PATH and folder == _state_folder()
    if not is_long or not os.path.isdir("/proc/self/fd"):
        yield folder
        return
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{opened}")
    finally:
        os.close(opened)


def _is_private(folder: Path) -> bool:
    try:
        if not _is_safe_base(os.stat(folder.parent)):
            return False
        found = folder.lstat()
    except (OSError, ValueError):
        return False
    is_private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return is_private and found.st_uid == os.geteuid()


def _is_safe_base(found: os.stat_result) -> bool:
    """Tell whether no other user can replace what is ours in a folder."""
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.geteuid()) and not is_open


class Announced:
    """The socket of this filter, until it is closed."""

    def __init__(self, answer: Answer, answer_page: AnswerPage | None, folder: Path) -> None:
        """Raises OSError."""
        self._answer, self._answer_page = answer, answer_page
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"{os.getpid()}-{secrets.token_hex(2)}"  # short: the whole path has about 100 bytes
        self._path, hidden = folder / name, folder / f".{name}"
        try:
            with _reachable(folder) as place:
                self._listener.bind(str(place / hidden.name))
            self._listener.listen(_BACKLOG)
            hidden.rename(self._path)  # now: a reader removes a socket that takes no connection
        except OSError:
            self._listener.close()
            with suppress(OSError):
                hidden.unlink()
            raise
        self._is_open = True
        Thread(target=self._serve, name="status", daemon=True).start()

    def close(self) -> None:
        """Remove the socket."""
        self._is_open = False
        with suppress(OSError):
            self._path.unlink()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread
        self._listener.close()

    def _serve(self) -> None:
        while self._is_open:
            try:
                asker = self._listener.accept()[0]
            except OSError:
                if self._is_open:
                    time.sleep(_PATIENCE)  # no descriptors are left
                continue
            with suppress(Exception), asker:  # this filter may be ending
                question = _question(asker)
                asker.settimeout(_PATIENCE)
                answers_page = self._answer_page if question else None
                said = answers_page(question) if answers_page else self._answer()
                asker.sendall(said if isinstance(said, bytes) else json.dumps(said).encode())


def announce(answer: Answer, answer_page: AnswerPage | None = None) -> Announced | None:
    """Let others ask this filter; None if that is not possible here."""
    folder = own_folder(creates=True)
    try:
        return Announced(answer, answer_page, folder) if folder else None
    except (OSError, ValueError, RuntimeError):  # a path that is too long, a full disk, no thread
        return None


def _question(asker: socket.socket) -> JsonObject:
    """Return what an asker wants to know; nothing in particular if it does not say."""
    asker.settimeout(_QUESTION)
    text = b""
    with suppress(TimeoutError):
        while not text.endswith(b"\n") and (part := asker.recv(64 * 1024)):
            text += part
            if len(text) > _LONGEST_QUESTION:
                raise ValueError("the question is too long")
    question = json.loads(text.strip() or b"{}")
    return question if isinstance(question, dict) else {}


def running_filters(question: Callable[[int], JsonObject] = lambda _pid: {}) -> list[JsonObject]:
    """Return what each running filter of this user says, oldest first. Each is asked the
    ``question`` for its process.

    One that does not answer is there with its ``pid`` and a ``problem``.
    """
    from concurrent.futures import ThreadPoolExecutor  # only who asks needs it

    paths = [path for folder in _own_folders() for path in _sockets_in(folder)]
    if not paths:
        return []
    with suppress(OSError), ThreadPoolExecutor(_MOST_ASKED) as threads:
        answers = threads.map(lambda path: _ask(path, question(_pid_of(path))), sorted(paths))
        return sorted(filter(None, answers), key=lambda one: str(one.get("started", "")))
    return []


def ask_filter(pid: int, question: JsonObject) -> JsonObject:
    """Ask one running filter of this user; the answer has a ``problem`` if there is none."""
    for folder in _own_folders():
        for path in _sockets_in(folder):
            if _pid_of(path) == pid and (said := _ask(path, question)) is not None:
                return said
    return {"problem": "This filter has ended"}


def _pid_of(path: Path) -> int:
    pid = path.name.partition("-")[0]
    return int(pid) if pid.isdecimal() else 0


def _sockets_in(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from _of_ours(folder.iterdir())


def _of_ours(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        with suppress(OSError):
            found = path.lstat()
            is_ours = stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()
            if is_ours and not path.name.startswith("."):
                yield path


def _ask(path: Path, question: JsonObject) -> JsonObject | None:
    """Ask one filter; None if it has ended."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as filter:
            patience = _PAGE_PATIENCE if question else _PATIENCE
            filter.settimeout(patience)
            with _reachable(path.parent) as place:
                filter.connect(str(place / path.name))
            with suppress(BrokenPipeError, ConnectionResetError):  # an older one listens to nothing
                filter.sendall(json.dumps(question).encode() + b"\n")
            return _said(_read(filter, patience))
    except ConnectionRefusedError:  # it was killed
        with suppress(OSError):
            path.unlink()
        return None
    except (TimeoutError, BlockingIOError):
        return {"pid": _pid_of(path), "problem": "It does not answer"}
    except (OSError, ValueError, RecursionError):
        return None


def _read(filter: socket.socket, patience: float) -> bytes:
    end = time.monotonic() + patience
    parts, size = [], 0
    with suppress(ConnectionResetError):  # an older one has left our question unread
        while part := filter.recv(256 * 1024):
            parts.append(part)
            size += len(part)
            if size > _MOST_READ or time.monotonic() > end:
                raise TimeoutError
    return b"".join(parts)


def _said(answer: bytes) -> JsonObject | None:
    """Parse an answer; None if it is not one of ours, such as that of a filter which ends."""
    said = json.loads(answer)
    if isinstance(said, dict) and "done" in said:
        return said
    servers = said.get("servers") if isinstance(said, dict) else None
    if not isinstance(servers, list) or not all(map(_is_server, servers)):
        return None
    said["servers"] = [dict.fromkeys((*_TEXTS, *_NUMBERS)) | one for one in servers]
    return said if isinstance(said.get("pid"), int) else None


_TEXTS = ("name", "server", "target", "listens_at", "lock")
_NUMBERS = ("exposed", "hidden", "calls", "failed", "refused", "waiting")


def _is_server(said: object) -> bool:
    """Tell whether a filter, perhaps of another version, can have said this about a server."""
    return isinstance(said, dict) and all(
        isinstance(said.get(key), kind | None)
        for keys, kind in ((_TEXTS, str), (_NUMBERS, int))
        for key in keys
    )


# What a filter says


def describe_filter(
    servers: Sequence[JsonObject],
    *,
    started: float,
    config_file: str,
    audit_log: str | None,
    dashboard: str | None = None,
) -> JsonObject:
    """Return what a filter says about itself. Nothing in it is secret."""
    return {
        "pid": os.getpid(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "dashboard": dashboard,
        "audit_log": audit_log,
        "entry": os.environ.get(ENTRY),
        "config_file": os.path.realpath(config_file) if config_file else None,
        "servers": list(servers),
    }


def describe_server(
    name: str | None,
    target: str,
    snapshot: Snapshot | None,
    counted: Statistics,
    *,
    server: str = "",
    listens_at: str | None = None,
    has_login: bool = False,
    config: Config,
) -> JsonObject:
    """Return what a filter says about one of its servers.

    ``target`` is its URL or command without secrets; ``snapshot`` is None while its tools are
    unknown.
    """
    exposed, hidden = (snapshot.allowed, snapshot.denied) if snapshot else ({}, {})
    calls, refused = (Counter(dict(one)) for one in (counted.calls, counted.refused_calls))
    failed = sum(dict(counted.failed_calls).values())  # copies: another thread counts
    return {
        "name": name,
        "server": shown(server),
        "target": target,
        "listens_at": listens_at,
        "exposed": len(exposed) if snapshot else None,
        "hidden": len(hidden) if snapshot else None,
        "exposed_tools": [shown(one) for one in list(exposed)[:MANY]],
        "hidden_tools": [shown(one) for one in list(hidden)[:MANY]],
        "calls": calls.total(),
        "failed": failed,
        "refused": counted.refused,
        "calls_by_tool": dict(calls.most_common(MANY)),
        "refused_by_tool": dict(refused.most_common(MANY)),
        "lock": os.path.abspath(config.lock) if config.lock else None,
        "waiting": len(snapshot.locked) if snapshot else 0,
        "shadow": config.shadow,
        "login": has_login,
    }
