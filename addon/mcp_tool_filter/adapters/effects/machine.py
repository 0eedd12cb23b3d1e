"""The parts of this machine that a rules file refers to: scripts and the user's Python code."""

from __future__ import annotations

import os
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from importlib import import_module
from pathlib import Path
from shutil import which

_LONGEST_HEAD = 256  # bytes that Linux reads of a program to find its interpreter


class ThisMachine:
    """Finds scripts and Python objects; ``folder`` contains the rules file, and relative paths
    start there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def import_object(self, name: str) -> object:
        """Return the object ``module:name``. Raises ValueError, which says what is wrong."""
        module, _, path = name.partition(":")
        for given in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            if given and os.path.abspath(given) not in sys.path:  # the launcher removed it
                sys.path.append(os.path.abspath(given))
        folder = str(self._folder.resolve())
        added = folder not in sys.path
        if added:  # so that modules beside the rules file are found, as for a script
            sys.path.insert(0, folder)
        try:
            found: object = import_module(module)
        except Exception as error:
            why = str(error) or type(error).__name__
            raise ValueError(f"{module} cannot be imported: {why}") from None
        finally:
            if added:
                sys.path.remove(folder)
        for part in path.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise ValueError(f"{module} has no {path}") from None
        return found

    def find_script(self, path: str) -> str:
        """Return a script's absolute path. Raises ValueError if it cannot be executed."""
        script = self._folder.resolve() / os.path.expanduser(path)
        if not script.exists():
            raise ValueError(f"there is no script {path}")
        if not script.is_file() or not os.access(script, os.X_OK):
            raise ValueError(f"{path} cannot be executed; chmod +x makes it executable")
        if problem := _problem_in_head(script):
            raise ValueError(f"{path} cannot be executed: {problem}")
        return str(script)


def _problem_in_head(script: Path) -> str:
    """Say why the system would not start a program, as far as its first line tells."""
    if os.name != "posix":
        return ""
    try:
        with script.open("rb") as file:
            head = file.read(_LONGEST_HEAD)
    except OSError:
        return ""  # what may be executed need not be readable
    if not head.startswith(b"#!"):
        is_binary = b"\0" in head and not head.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
        return "" if is_binary else "it does not begin with #! and the path of an interpreter"
    line = head[2:].split(b"\n")[0]
    if line.endswith(b"\r"):
        return "its first line ends with a carriage return, which Linux takes for a letter"
    words = os.fsdecode(line).split()
    interpreter = words[0] if words else ""
    if not os.access(interpreter, os.X_OK) or os.path.isdir(interpreter):
        return f"there is no interpreter {interpreter or 'behind #!'}"
    if os.path.basename(interpreter) == "env" and len(words) == 2 and which(words[1]) is None:
        return f"there is no program {words[1]} on the PATH"
    return ""
