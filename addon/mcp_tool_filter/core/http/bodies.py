"""Read bodies: their type, their coding, and what they show if they are not messages.

Two readers must find the same message. mitmproxy would decode any codec that Python knows, accept a
truncated body as complete, and read only the first gzip member. We decode the four codings of the
web ourselves, within a limit, and refuse what could be decoded in two ways.

>>> import gzip
>>> decode_body(gzip.compress(b"{}"), "gzip", limit=10)
b'{}'

Readers differ on the quotes and repeated parameters of a Content-Type, so we return every charset
that some reader could find:

>>> kind_of(" Application/JSON ; charset=utf-8")
'application/json'
>>> charsets_in('application/json; x="; Charset = \\'UTF-16\\'"; charset*=utf-8')
['utf-16', 'utf-8']

Error pages, forms and metadata documents pass unless some client could find a hidden tool in them.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Collection
from functools import lru_cache
from itertools import pairwise

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages.limits import Limits, OverLimit
from mcp_tool_filter.core.messages.scan import decode, scan
from mcp_tool_filter.core.messages.tools import shows_tool

_GZIP, _ZLIB, _RAW = 31, 15, -15


def decode_body(raw: bytes, coding: str, *, limit: int) -> bytes:
    """Return the decoded body. Raises ProtocolError if it is not unambiguous."""
    name = coding.strip().lower()
    if name in ("", "identity"):
        return raw
    if name not in _DECODERS:
        raise ProtocolError("a content coding that is not accepted")
    try:
        body = _DECODERS[name](raw, limit)
    except ProtocolError:
        raise
    except Exception as error:  # each codec raises its own errors
        raise ProtocolError(f"not valid {name}") from error
    if len(body) > limit:
        raise OverLimit(f"longer than {limit} bytes when decoded")
    return body


def looks_like_json(raw: bytes) -> bool:
    """Tell whether a reader that ignores the coding could take the bytes for JSON.

    (A deflate or brotli stream can be written so that it is both.)
    """
    return raw[:64].lstrip(b" \t\r\n\0\xef\xbb\xbf\xfe\xff")[:1] in (b"{", b"[")


def _gzip(raw: bytes, limit: int) -> bytes:
    return _inflate(raw, _GZIP, limit)


def _deflate(raw: bytes, limit: int) -> bytes:
    """Decode "deflate", which names two formats; refuse a body that is valid in both."""
    found = []
    for window in (_ZLIB, _RAW):
        try:
            found.append(_inflate(raw, window, limit))
        except (zlib.error, ProtocolError):
            continue
    if len(found) != 1:
        raise ProtocolError("not valid deflate")
    return found[0]


def _inflate(raw: bytes, window: int, limit: int) -> bytes:
    inflater = zlib.decompressobj(window)
    body = inflater.decompress(raw, limit + 1)
    if len(body) <= limit and (not inflater.eof or inflater.unused_data):
        raise ProtocolError("compressed data cut short, or with something behind it")
    return body


def _brotli(raw: bytes, limit: int) -> bytes:
    import brotli

    decoder = brotli.Decompressor()
    body = bytes(decoder.process(raw, output_buffer_limit=limit + 1))
    while not decoder.is_finished() and len(body) <= limit:
        more = decoder.process(b"", output_buffer_limit=limit + 1 - len(body))
        if not more:
            raise ProtocolError("compressed data cut short")
        body += more
    return body


def _zstd(raw: bytes, limit: int) -> bytes:
    import zstandard

    window = max(limit, 1 << 20)
    with zstandard.ZstdDecompressor(max_window_size=window).stream_reader(
        io.BytesIO(raw)
    ) as reader:
        body = reader.read(limit + 1)
    if len(body) <= limit:
        whole = zstandard.ZstdDecompressor(max_window_size=window).decompressobj()
        whole.decompress(raw)
        if not whole.eof or whole.unused_data:
            raise ProtocolError("compressed data cut short, or with something behind it")
    return body


_DECODERS = {"gzip": _gzip, "deflate": _deflate, "br": _brotli, "zstd": _zstd}


JSON = "application/json"
EVENT_STREAM = "text/event-stream"
_VALUE = re.compile(r"""["']?([^"'\s]*)""")


def kind_of(content_type: str) -> str:
    """Return the type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


@lru_cache(maxsize=128)  # the same few come again and again
def is_event_stream(content_type: str) -> bool:
    """Tell whether a body is an event stream."""
    return kind_of(content_type) == EVENT_STREAM


def may_be_event_stream(content_type: str) -> bool:
    """Tell whether some client would read a body as events: some only search for part of the
    name."""
    return "event-stream" in content_type.lower()


def charsets_in(content_type: str) -> list[str]:
    """Return every charset that some reader could find, in lower case."""
    found: list[str] = []
    if "charset" not in (plain := content_type.lower()):
        return found
    for parameter in plain.split(";"):
        parts = parameter.split("=")
        for name, value in pairwise(parts):
            if "charset" in name and (text := _VALUE.match(value.lstrip())):
                found.append(text[1])
    return found


# In the last ones ASCII bytes mean ASCII; JSON is always read as UTF-8.
UTF_8 = frozenset({"utf-8", "utf8"})
READABLE = UTF_8 | {"us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252"}


@lru_cache(maxsize=128)  # the same few come again and again
def refuse_partial(status: int, content_type: str) -> None:
    """Raise ProtocolError for a partial answer, or one in a charset that we do not read."""
    if status == 206:
        raise ProtocolError("a partial answer that was not requested")
    if not READABLE.issuperset(charsets_in(content_type)):
        raise ProtocolError("a charset that is not accepted")


def could_show_tool(
    body: bytes, names: Collection[str], limits: Limits, *, in_text: Collection[str] | None = None
) -> bool:
    """Tell whether some client could find one of these tools in a body that is not a message.

    ``in_text`` are the names to look for in what is not JSON, if not the same.
    """
    try:
        scan(body, None, limits)
    except ProtocolError:
        return looks_like_json(body) or _mentions_schema(
            body, names if in_text is None else in_text
        )
    return shows_tool(body.decode(), names)


def refuse_non_text(content_type: str, body: bytes) -> None:
    """Raise ProtocolError for a body that claims to be JSON but is not text."""
    if "json" in content_type.lower():
        decode(body)


_MOST_SEARCHED = 1 << 30  # bytes that are searched for names one by one: half a second


def _mentions_schema(body: bytes, names: Collection[str]) -> bool:
    """Search text for a schema. In markup, which is for people, a schema alone does not count."""
    bare = body.replace(b"\0", b"").lower()
    if bare.lstrip().startswith(b"<"):
        if b"inputschema" not in bare or len(names) * len(bare) > _MOST_SEARCHED:
            return b"inputschema" in bare
        return any(name.lower().encode() in bare for name in names)
    return bool(names) and (b"inputschema" in bare or b"\\u" in bare)
