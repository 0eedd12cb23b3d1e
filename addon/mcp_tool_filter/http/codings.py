"""Decode content codings, within a limit and without leftover bytes.

mitmproxy would decode any codec that Python knows, accept a truncated body as complete, and read
only the first gzip member. Two readers must find the same message, so we decode the four codings of
the web ourselves and refuse everything that could be decoded in two ways.

>>> import gzip
>>> decode_body(gzip.compress(b"{}"), "gzip", limit=10)
b'{}'
"""

from __future__ import annotations

import io
import zlib

from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.protocol.limits import OverLimit

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
