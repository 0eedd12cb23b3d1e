"""Running filters find each other through a private folder of sockets.

Each filter has a Unix socket in ``$XDG_RUNTIME_DIR/mcp-tool-filter``. Who connects gets one JSON
object, and the connection is closed. ``status`` and the page read them all.

A thread answers, because a relay has no event loop. Without the folder, or if it is not ours alone,
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
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
_MOST_READ = 16 * 1024 * 1024
_MOST_ASKED = 16  # at the same time
_BACKLOG = 16

type Answer = Callable[[], JsonObject]
"""Returns what a filter says about itself; called in a thread."""


def own_folder(*, creates: bool = False) -> Path | None:
    """Return the folder of the sockets; None if there is none, or another user could change it."""
    base = os.environ.get(FOLDER, "")
    if not base.startswith("/") or not hasattr(socket, "AF_UNIX"):
        return None
    folder = Path(base) / "mcp-tool-filter"
    try:
        if not _is_safe_base(os.stat(base)):
            return None
        if creates:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        found = folder.lstat()
    except (OSError, ValueError):
        return None
    is_private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    return folder if is_private and found.st_uid == os.geteuid() else None


def _is_safe_base(found: os.stat_result) -> bool:
    """Tell whether no other user can replace what is ours in a folder."""
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    return found.st_uid in (0, os.geteuid()) and not is_open


class Announced:
    """The socket of this filter, until it is closed."""

    def __init__(self, answer: Answer, folder: Path) -> None:
        """Raises OSError."""
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name = f"{os.getpid()}-{secrets.token_hex(2)}"  # short: the whole path has about 100 bytes
        self._path, hidden = folder / name, folder / f".{name}"
        try:
            self._listener.bind(str(hidden))
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
                asker.settimeout(_PATIENCE)
                asker.sendall(json.dumps(self._answer()).encode())


def announce(answer: Answer) -> Announced | None:
    """Let others ask this filter; None if that is not possible here."""
    folder = own_folder(creates=True)
    try:
        return Announced(answer, folder) if folder else None
    except (OSError, ValueError, RuntimeError):  # a path that is too long, a full disk, no thread
        return None


def running_filters() -> list[JsonObject]:
    """Return what each running filter of this user says, oldest first.

    One that does not answer is there with its ``pid`` and a ``problem``.
    """
    folder = own_folder()
    if folder is None:
        return []
    from concurrent.futures import ThreadPoolExecutor  # only who asks needs it

    with suppress(OSError), ThreadPoolExecutor(_MOST_ASKED) as threads:
        answers = threads.map(_ask, sorted(_sockets_in(folder)))
        return sorted(filter(None, answers), key=lambda one: str(one.get("started", "")))
    return []


def _sockets_in(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        with suppress(OSError):
            found = path.lstat()
            is_ours = stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid()
            if is_ours and not path.name.startswith("."):
                yield path


def _ask(path: Path) -> JsonObject | None:
    """Ask one filter; None if it has ended."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as filter:
            filter.settimeout(_PATIENCE)
            filter.connect(str(path))
            return _said(_read(filter))
    except ConnectionRefusedError:  # it was killed
        with suppress(OSError):
            path.unlink()
        return None
    except (TimeoutError, BlockingIOError):
        pid = path.name.partition("-")[0]
        return {"pid": int(pid) if pid.isdecimal() else 0, "problem": "It does not answer"}
    except (OSError, ValueError, RecursionError):
        return None


def _read(filter: socket.socket) -> bytes:
    end = time.monotonic() + _PATIENCE
    parts, size = [], 0
    while part := filter.recv(256 * 1024):
        parts.append(part)
        size += len(part)
        if size > _MOST_READ or time.monotonic() > end:
            raise TimeoutError
    return b"".join(parts)


def _said(answer: bytes) -> JsonObject | None:
    """Parse an answer; None if it is not one of ours, such as that of a filter which ends."""
    said = json.loads(answer)
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
