"""Write the certificate files that the client and we should trust."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path

import certifi

from mcp_tool_filter.adapters.run.environment import TRUSTED
from mcp_tool_filter.errors import StartError

_BEGIN = b"-----BEGIN"


def write_bundles(
    folder: Path, *, ours: bytes, own: str | None, environment: Mapping[str, str]
) -> tuple[Path, Path]:
    """Write the certificates for the client and for us; return both files. Raises StartError.

    ``ours`` is our own CA, ``own`` a file that the user names. We trust whatever the client would
    have trusted without us.
    """
    known = b"\n".join(dict.fromkeys(_known(own, environment)))
    client, upstream = folder / "client.pem", folder / "upstream.pem"
    upstream.write_bytes(known + b"\n")
    client.write_bytes(known + b"\n" + ours)
    return client, upstream


def _known(own: str | None, environment: Mapping[str, str]) -> Iterator[bytes]:
    system = ssl.get_default_verify_paths().cafile
    yield Path(certifi.where()).read_bytes()
    for name in filter(None, (system, *map(environment.get, TRUSTED))):
        if (found := _read(name)) is not None:
            yield found
    if own is not None:
        if (found := _read(os.path.expanduser(own))) is None:
            raise StartError(f"Cannot read --ca {own}", why="It must be a file of PEM certificates")
        yield found


def _read(name: str) -> bytes | None:
    try:
        found = Path(name).read_bytes()
    except OSError:
        return None
    return found if _BEGIN in found else None
