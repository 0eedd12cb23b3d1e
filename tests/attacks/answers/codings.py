"""Lists in codings that a client undoes otherwise than the proxy."""

from __future__ import annotations

import gzip
import quopri
import zlib
from collections.abc import Iterator

import brotli
import zstandard

from tests.attacks.answers.base import (
    ASKED,
    SSE,
    TEXT,
    TOOLS,
    Attack,
    event,
)
from tests.attacks.hostile_requests import chunked
from tests.mcp_upstream import RESULT
from tests.raw_upstream import answer


def in_codings() -> Iterator[Attack]:
    """Answers in a coding that was not requested."""
    raw = zlib.compressobj(wbits=-15)
    for what in ("tools/list", "GET elsewhere", "a notification"):
        for coding, body in {
            "gzip": gzip.compress(TOOLS),
            "gzip of two members": gzip.compress(RESULT) + gzip.compress(TOOLS),
            "gzip cut short": gzip.compress(TOOLS)[:-4],
            "gzip and behind": gzip.compress(RESULT) + TOOLS,
            "gzip that is none": TOOLS,
            "deflate": zlib.compress(TOOLS),
            "deflate raw": raw.compress(TOOLS) + raw.flush()
            if what == "tools/list"
            else zlib.compress(TOOLS),
            "br": brotli.compress(TOOLS),
            "zstd": zstandard.compress(TOOLS),
            "zstd of two frames": zstandard.compress(RESULT) + zstandard.compress(TOOLS),
            "gzip, gzip": gzip.compress(gzip.compress(TOOLS)),
            "x-gzip": gzip.compress(TOOLS),
            "compress": gzip.compress(TOOLS),
            "quopri": quopri.encodestring(TOOLS),
            "utf-7": TEXT.encode("utf-7"),
            "unknown": gzip.compress(TOOLS),
            "identity": TOOLS,
        }.items():
            value = coding if "," in coding else coding.partition(" ")[0]
            for status in ("200 OK", "500 X"):
                said = answer(
                    body, status=status, kind=f"application/json\r\nContent-Encoding: {value}"
                )
                yield Attack(f"{coding} with {status} to {what}", (said,), ASKED[what])
        packed = zlib.compressobj(wbits=31)
        flushed = packed.compress(event(TOOLS)) + packed.flush(zlib.Z_SYNC_FLUSH)
        head = SSE + b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
        yield Attack(f"gzip stream to {what}", (head + chunked(flushed, end=b""),), ASKED[what])
    for charset in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7", "cp037"):
        for label in (
            "application/json",
            "text/plain",
            f"application/json; charset={charset}",
            "text/event-stream",
        ):
            body = event(TOOLS) if "event" in label else TOOLS
            coded = body.decode().encode(charset)
            for what in ("tools/list", "GET"):
                yield Attack(
                    f"{charset} as {label} to {what}", (answer(coded, kind=label),), ASKED[what]
                )
            yield Attack(
                f"{charset} as {label} with 500", (answer(coded, kind=label, status="500 X"),)
            )
