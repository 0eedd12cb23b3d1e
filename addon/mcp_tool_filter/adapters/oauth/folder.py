"""Where logins are kept. Imports next to nothing: each start asks whether there are any."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return where logins are kept: where the system has the settings of its user."""
    if sys.platform == "win32":
        base = environment.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    else:
        base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "mcp-tool-filter" / "logins"


def registrations_folder(environment: Mapping[str, str]) -> Path:
    """Return where we keep which clients have registered through us."""
    return default_folder(environment).with_name("registrations")


def has_logins() -> bool:
    """Tell whether the user has ever logged in anywhere."""
    try:
        return default_folder(os.environ).is_dir()
    except (OSError, RuntimeError):  # a user without a home
        return False
