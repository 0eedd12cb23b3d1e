"""Import single addons of mitmproxy without all the others.

``import mitmproxy.addons.core`` runs the package's ``__init__``, which imports every addon, and
with them flask, ldap3 and more: a third of mitmproxy's start-up time and memory.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_PACKAGE = "mitmproxy.addons"


def keep_addons_apart() -> None:
    """Replace mitmproxy's addons package by an empty one. Call this before importing mitmproxy."""
    found = find_spec("mitmproxy")
    if _PACKAGE in sys.modules or found is None or found.origin is None:
        return
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(found.origin).parent / "addons")]
    sys.modules[_PACKAGE] = package


def put_addons_together() -> None:
    """Remove the empty package: imported addons stay, and the others can be imported."""
    package = sys.modules.get(_PACKAGE)
    if package is not None and package.__spec__ is None:
        del sys.modules[_PACKAGE]
