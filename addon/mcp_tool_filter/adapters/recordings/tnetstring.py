r"""Write values in the format of mitmproxy's flow dumps, without importing mitmproxy.

>>> write_value({"a": [1, True, None], "b": (b"x", "y")})
b'37:1:a;14:1:1#4:true!0:~]1:b;8:1:x,1:y;]}'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

type Dumpable = (
    bool | int | float | bytes | str | Sequence["Dumpable"] | Mapping[str, "Dumpable"] | None
)


def write_value(value: Dumpable) -> bytes:
    """Render a value with its length before it and its type after it."""
    payload, kind = _payload(value)
    return b"%d:%b%b" % (len(payload), payload, kind)


def _payload(value: Dumpable) -> tuple[bytes, bytes]:
    match value:
        case None:
            return b"", b"~"
        case bool():
            return (b"true" if value else b"false"), b"!"
        case int():
            return b"%d" % value, b"#"
        case float():
            return repr(value).encode(), b"^"
        case bytes():
            return value, b","
        case str():
            return value.encode(), b";"
        case Mapping():
            items = [write_value(part) for item in value.items() for part in item]
            return b"".join(items), b"}"
        case _:
            return b"".join(map(write_value, value)), b"]"
