"""The folder of stored logins. (Imports almost nothing, because each start uses it.)"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of logins, in the user's configuration folder."""
    if sys.platform == "win32":
        base = environment.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    else:
        base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "mcp-tool-filter" / "logins"


def registrations_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the clients' registrations."""
    return default_folder(environment).with_name("registrations")


def has_logins() -> bool:
    """Tell whether the user has ever logged in anywhere."""
    try:
        return default_folder(os.environ).is_dir()
    except (OSError, RuntimeError):  # the user has no home folder
        return False
