"""Read a Content-Type.

Readers differ on quotes and on repeated parameters, so we return every charset that some reader
could find:

>>> kind_of(" Application/JSON ; charset=utf-8")
'application/json'
>>> charsets_in('application/json; x="; Charset = \\'UTF-16\\'"; charset*=utf-8')
['utf-16', 'utf-8']
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

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
