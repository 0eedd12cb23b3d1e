"""Headers that are looked up quickly say what mitmproxy's own say."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mitmproxy.coretypes.multidict import MultiDict
from mitmproxy.http import Headers, Request, Response
from mitmproxy.net.http.http1.read import expected_http_body_size

from mcp_tool_filter.adapters.mitmproxy.forward.fast import headers as ours

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
def test_a_header_lookup_finds_the_same(fields: Any, name: bytes) -> None:
    headers, slow = Headers(fields), Slow(fields)  # type: ignore[no-untyped-call]  # mitmproxy's
    for asked in (name, text(name)):
        assert ours.get_all(headers, asked) == [text(value) for value in slow.get_all(name)]
        assert ours.get(headers, asked, "none") == slow.get(name, "none")
        assert ours.contains(headers, asked) == (name in slow)


@given(fields=FIELDS, name=NAMES, values=st.lists(st.binary(max_size=3)))
def test_a_header_that_is_set_keeps_its_place(fields: Any, name: bytes, values: Any) -> None:
    headers, slow = Headers(fields), Slow(fields)  # type: ignore[no-untyped-call]  # mitmproxy's
    ours.set_all(headers, text(name), [*map(text, values)])
    slow.set_all(name, copy.copy(values))
    assert headers.fields == slow.fields


@given(fields=FIELDS, name=NAMES)
def test_removing_a_header_gives_the_same(fields: Any, name: bytes) -> None:
    headers, slow = Headers(fields), Slow(fields)  # type: ignore[no-untyped-call]  # mitmproxy's
    assert ours.pop(headers, text(name), "none") == slow.pop(name, "none")
    assert headers.fields == slow.fields
    with pytest.raises(KeyError):
        ours.pop(headers, name)


@pytest.mark.parametrize("value", [1, None])
def test_a_header_that_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        ours.set_all(Headers(), "a", [value])


LENGTHS = st.sampled_from(
    [(b"Content-Length", b"5"), (b"content-length", b"7"), (b"Content-Length", b"x"),
     (b"Transfer-Encoding", b"chunked"), (b"transfer-encoding", b"gzip"), (b"A", b"1")]
)  # fmt: skip


def answer_of(size: Callable[..., int | None], *messages: Any) -> object:
    try:
        return size(*messages)
    except ValueError as error:
        return str(error)


@given(
    fields=st.lists(LENGTHS, max_size=3),
    method=st.sampled_from(["GET", "HEAD", "POST", "CONNECT"]),
    statuses=st.lists(st.sampled_from([100, 101, 200, 204, 304, 404]), min_size=1, max_size=3),
    changes=st.lists(LENGTHS, max_size=3),
)
def test_the_length_of_a_body_is_what_mitmproxy_computes(
    fields: Any, method: str, statuses: list[int], changes: Any
) -> None:
    """However often it is asked, and whatever has been changed since."""
    request, response = Request.make(method, "http://a/"), Response.make()
    request.headers.fields = response.headers.fields = tuple(fields)

    def is_same() -> bool:
        asked: list[tuple[Any, ...]] = [(request,), (request, response), (request,)]
        return all(
            answer_of(ours.body_size, *one) == answer_of(expected_http_body_size, *one)
            for one in asked
        )

    for status in statuses:
        response.status_code = status
        assert is_same()
    for name, value in changes:
        request.headers[name] = response.headers[name] = value
        assert is_same()
        request.method = "HEAD"
        assert is_same()
    for name, _ in changes:
        request.headers.pop(name, None)
        response.headers.pop(name, None)
        assert is_same()


def test_a_copy_does_not_change_with_its_original() -> None:
    """A shallow copy shares what has been remembered of the fields."""
    headers = Headers([(b"Content-Length", b"5")])
    response = Response(b"HTTP/1.1", 200, b"OK", headers, None, None, 0, 0)
    request = Request.make("GET", "http://a/")
    assert ours.body_size(request, response) == 5
    copied = copy.copy(headers)
    ours.set_all(headers, "content-length", ["6"])
    ours.set_all(headers, "a", ["1"])
    assert (ours.get(copied, "content-length"), ours.get(copied, "a")) == ("5", None)
    assert ours.body_size(request, response) == 6
    response.headers = copied
    assert ours.body_size(request, response) == 5


def test_the_faster_headers_are_installed_with_the_addon() -> None:
    script = (
        "from mitmproxy.http import Headers, Request;"
        "from mcp_tool_filter.adapters.mitmproxy.forward.fast.headers"
        " import install_quick_headers, get;"
        "install_quick_headers();"
        "h = Headers(((b'A', b'1'), (b'a', b'2')));"
        "h['b'] = '3'; h.pop('none', None); del h['B'];"
        "assert Headers.get is get and h['a'] == '1, 2' and 'A' in h and len(h) == 1, h;"
        "from mitmproxy.net.http import http1;"
        "from mitmproxy.proxy.layers import http;"
        "sizes = http1.expected_http_body_size, http.expected_http_body_size;"
        "assert {one.__name__ for one in sizes} == {'body_size'}, sizes"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env={"PYTHONPATH": "addon"})
