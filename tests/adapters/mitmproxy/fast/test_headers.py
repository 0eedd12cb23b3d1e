"""Headers that are looked up quickly say what mitmproxy's own say."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.coretypes.multidict import MultiDict
from mitmproxy.http import Headers

from mcp_tool_filter.adapters.mitmproxy.fast import headers as ours

ours.install_quick_headers()
NAMES = st.sampled_from([b"Accept", b"accept", b"ACCEPT", b"Cookie", b"", b"x-\xc3\xa4", b"\xff"])
FIELDS = st.lists(st.tuples(NAMES, st.binary(max_size=3))).map(tuple)


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


class Slow(MultiDict[Any, Any]):
    """mitmproxy's, without what we have put into ``Headers``."""

    @staticmethod
    def _reduce_values(values: Any) -> str:
        return ", ".join(map(text, values))

    @staticmethod
    def _kconv(key: Any) -> Any:
        return key.lower()


@given(fields=FIELDS, name=NAMES)
def test_a_lookup_finds_the_same(fields: Any, name: bytes) -> None:
    headers, slow = Headers(fields), Slow(fields)  # type: ignore[no-untyped-call]  # mitmproxy's
    for asked in (name, text(name)):
        assert ours.get_all(headers, asked) == [text(value) for value in slow.get_all(name)]
        assert ours.get(headers, asked, "none") == slow.get(name, "none")
        assert ours.contains(headers, asked) == (name in slow)


@given(fields=FIELDS, name=NAMES, values=st.lists(st.binary(max_size=3)))
def test_what_is_set_stands_in_the_same_place(fields: Any, name: bytes, values: Any) -> None:
    headers, slow = Headers(fields), Slow(fields)  # type: ignore[no-untyped-call]  # mitmproxy's
    ours.set_all(headers, text(name), [*map(text, values)])
    slow.set_all(name, copy.copy(values))
    assert headers.fields == slow.fields


@given(fields=FIELDS, name=NAMES)
def test_what_is_taken_out_is_the_same(fields: Any, name: bytes) -> None:
    headers, slow = Headers(fields), Slow(fields)  # type: ignore[no-untyped-call]  # mitmproxy's
    assert ours.pop(headers, text(name), "none") == slow.pop(name, "none")
    assert headers.fields == slow.fields
    with pytest.raises(KeyError):
        ours.pop(headers, name)


@pytest.mark.parametrize("value", [1, None])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        ours.set_all(Headers(), "a", [value])


def test_it_is_installed_with_the_addon() -> None:
    script = (
        "from mitmproxy.http import Headers, Request;"
        "from mcp_tool_filter.adapters.mitmproxy.fast.headers import install_quick_headers, get;"
        "install_quick_headers();"
        "h = Headers(((b'A', b'1'), (b'a', b'2')));"
        "h['b'] = '3'; h.pop('none', None); del h['B'];"
        "assert Headers.get is get and h['a'] == '1, 2' and 'A' in h and len(h) == 1, h"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": "addon"})
