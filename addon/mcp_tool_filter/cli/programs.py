"""Why a program that the user names cannot be started."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress


def why_not_started(error: Exception, program: str, file: str) -> str:
    """Return why a program cannot be started, and what would be right."""
    if not program:
        return "The command is empty"
    if os.path.isdir(file):
        return f"{program} is a folder, not a program"
    if isinstance(error, FileNotFoundError):
        if os.path.exists(file):
            return f"Cannot run {program}: {_what_is_missing(file)}"
        if re.match(r"https?://", program, re.IGNORECASE):
            return f"Command not found: {program}. A URL comes after --upstream"
        return f"Command not found: {program}"
    if isinstance(error, PermissionError) and os.path.exists(file):
        return f"Permission denied: {program} is not executable"
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return f"{error.strerror}: {program}. A script's first line must name what runs it"
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {program}"
    return str(error)


def _what_is_missing(program: str) -> str:
    with suppress(OSError), open(program, "rb") as file:
        first = file.readline(200)
        if first.startswith(b"#!") and (words := first[2:].split()):
            named = words[0].decode("utf-8", "backslashreplace")
            return f"there is no {named}, which its first line names"
    return "was it built for this system?"
