"""Lets single addons of mitmproxy be imported, without all the others.

``import mitmproxy.addons.core`` runs the package's ``__init__``, which imports every addon there
is, and with them flask, ldap3 and more: a third of mitmproxy's start, and of its memory.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

_PACKAGE = "mitmproxy.addons"


def keep_addons_apart() -> None:
    """Put an empty package before mitmproxy's; to be called before mitmproxy is imported."""
    found = find_spec("mitmproxy")
    if _PACKAGE in sys.modules or found is None or found.origin is None:
        return
    package = ModuleType(_PACKAGE)
    package.__path__ = [str(Path(found.origin).parent / "addons")]
    sys.modules[_PACKAGE] = package


def put_addons_together() -> None:
    """Take the empty package away: what is imported stays, and the rest can be."""
    package = sys.modules.get(_PACKAGE)
    if package is not None and package.__spec__ is None:
        del sys.modules[_PACKAGE]
