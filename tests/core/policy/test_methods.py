"""Methods that nobody has defined, requests that carry others, and lists in any answer."""

from __future__ import annotations

import pytest

from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Verdict
from tests.core.policy.talking import Talk, error_code, instead, said
from tests.make import answering, definition, listing_of
from tests.rows import each_row

READ, RM = (f'{{"name":"{name}","inputSchema":{{}}}}' for name in ("read", "rm"))
RM_LATER = definition("rm_later").decode()
NO_METHOD = {"code": -32601, "message": "Method not found"}


def talk() -> Talk:
    return Talk(deny=["^rm"])


def request(method: str, params: str) -> Verdict:
    return talk().asks(method, params)


def answer(result: str, method: str = "vendor/x") -> Verdict:
    return talk().hears(result, method)


@each_row("method", [
    "tools/resolve", "tools/catalog", "Tools/List", "/tools/describe", "tools.get", "tools%2fget",
    "tools/call/batch", "completion/tools",
])  # fmt: skip
def test_a_method_that_nobody_has_defined_is_unknown_while_tools_are_hidden(method: str) -> None:
    assert said(request(method, '{"name":"read"}')) == {
        "jsonrpc": "2.0",
        "id": 1,
        "error": NO_METHOD,
    }
    notice = f'{{"jsonrpc":"2.0","method":"{method}"}}'.encode()
    assert isinstance(talk().from_client(notice), Drop)
    for hiding in ({"allow": ["."]}, {"read_only": "true"}, {"deny_hint": ["destructive"]}):
        assert isinstance(Talk(**hiding).asks(method), Reply)
    assert Talk().asks(method) == Forward()


@each_row("method", ["vendor/tools", "groups/list", "toolsets/list", "tasks/x", "prompts/x", "x"])
def test_all_other_methods_pass(method: str) -> None:
    assert request(method, '{"name":"rm"}') == Forward()


@each_row("params", [
    '{"method":"tools/call","params":{"name":"%s"}}',
    '{"request":{"method":"tools/call","params":{"name":"%s"}}}',
])  # fmt: skip
def test_a_request_within_a_request_is_judged_as_if_it_were_sent_alone(params: str) -> None:
    for hidden in ("rm", "rm_later", "unknown"):
        asked = request("tasks/create", params % hidden)
        assert isinstance(asked, Reply)
        assert asked == request("tools/call", f'{{"name":"{hidden}"}}')
    assert request("tasks/create", params % "read") == Forward()
    resolve = params.replace("tools/call", "tools/resolve") % "read"
    assert error_code(request("tasks/create", resolve)) == -32601


CALL_IN = '{"method":"tools/call","params":{"name":"%s"}}'
DEEP = '{"a":' * 40 + "%s" + "}" * 40


@each_row("around", [
    '{"a":{"b":%s}}', '{"a":[1,[%s]]}', "[%s]", '{"x":"y","a":{"b":[{"c":%s}]}}', DEEP,
    '{"a":{"method":"tools/call","params":{"name":"read","x":%s}}}',
    '{"a":{"method":"GET","params":%s}}', '{"a":{"method":%s,"params":{}}}',
    '{"task":' + CALL_IN % "read" + ',"b":[' + CALL_IN % "read" + ",%s]}",
])  # fmt: skip
@each_row("inside", [
    CALL_IN,
    '{"m\\u0065thod":"tools/call","params":{"name":"%s"}}',
    '{"method":"tools\\/call","p\\u0061rams":{"name":"%s"}}',
    '{"method":"\\u0074ools/call","params":{"n\\u0061me":"%s"}}',
    '{"Method":"tools/call","PARAMS":{"name":"%s"}}',
    '{"me\\tthod":"tools/call","params":{"name":"%s"}}',
    '{"m\\u0065thod\\u0000\\"":"tools/call","params":{"name":"%s"}}',
    '{"ｍethod":"tools/call","params":{"name":"%s"}}',  # noqa: RUF001 - as wide as it looks
    '{"params":{"name":"%s"},"x":{},"method":"tools/call"}',
    '{"method":"x/%%74ools/call","params":{"name":"%s"}}',
    '{"method":"ping","method":"tools/call","params":{"name":"%s"}}',
    '{"method":"tools/call","method":"ping","params":{"name":"%s"}}',
    '{"method":"tools/call","params":{"name":"read"},"params":{"name":"%s"}}',
    '{"method":"tools/call","params":{"name":"%s"},"Params":{"name":"read"}}',
])  # fmt: skip
def test_a_request_is_found_at_every_depth_of_another(around: str, inside: str) -> None:
    carried = around % (inside % "rm")
    assert isinstance(request("tasks/create", carried), Reply)
    notice = f'{{"jsonrpc":"2.0","method":"vendor/x","params":{carried}}}'.encode()
    assert not isinstance(talk().from_client(notice), Forward)
    pair = b'[{"jsonrpc":"2.0","id":2,"method":"ping"},%b]' % notice
    assert talk().from_client(pair) != Forward()


def test_allowed_requests_are_carried_at_every_depth() -> None:
    for around in ('{"a":{"b":[%s]}}', DEEP, "[%s]"):
        assert request("tasks/create", around % (CALL_IN % "read")) == Forward()


def test_a_call_carries_nothing_beside_its_arguments() -> None:
    inside = CALL_IN % "rm"
    assert request("tools/call", f'{{"name":"read","arguments":{{"a":[{inside}]}}}}') == Forward()
    for params in (f'"x":[{inside}]', f'"_meta":{{"x":{inside}}}', inside[1:-1]):
        refused = request("tools/call", f'{{"name":"read","arguments":{{}},{params}}}')
        assert refused == request("tools/call", '{"name":"rm"}')
    carried = f'{{"method":"tools/call","params":{{"name":"read","arguments":{{"a":{inside}}}}}}}'
    assert request("tasks/create", f'{{"a":[{carried}]}}') == Forward()


def test_a_long_message_is_searched_within_a_bound() -> None:
    entries = '{"method":"GET","params":{"name":"rm"},"path":"/tools/x"},' * 10_000
    text = "é\\u00e9:{" * 200_000
    assert request("vendor/log", f'{{"log":[{entries}{{}}],"text":"{text}"}}') == Forward()
    inside, allowed = CALL_IN % "rm", CALL_IN % "read" + ","
    assert request("vendor/log", f'{{"a":[{allowed * 1000}1]}}') == Forward()
    assert error_code(request("vendor/log", f'{{"a":[{allowed * 1001}1]}}')) == -32600
    for filler in ("{},", '{"x":1},', '"é",'):
        many = f'{{"a":[{filler * 150_000}1],"b":{inside}}}'
        assert isinstance(request("vendor/log", many), Reply)


@each_row(("method", "params"), [
    ("completion/complete", '{"ref":{"type":"ref/prompt","name":"rm"}}'),
    ("tasks/create", '{"method":"rm","params":{"name":"rm"}}'),
    ("tasks/create", '{"method":"tools/list","params":{}}'),
    ("tasks/create", '{"method":"tools/call","params":"rm"}'),
    ("vendor/x", '{"name":"rm","call":{"method":"GET","params":{"name":"rm"}}}'),
    ("vendor/x", '{"method":17,"params":[{"method":"tools/call"}]}'),
    ("vendor/x", '{"log":[{"method":"POST","params":{"name":"rm"},"é":"tools/call"}]}'),
    ("vendor/x", '{"m\\u0065thod":"GET","a":{"params":{"name":"rm"}}}'),
    ("vendor/x", '{"text":"{\\"method\\":\\"tools/call\\",\\"params\\":{\\"name\\":\\"rm\\"}}"}'),
])  # fmt: skip
def test_what_is_no_request_about_a_tool_passes(method: str, params: str) -> None:
    assert request(method, params) == Forward()


@each_row(("method", "params"), [
    ("tasks/create", '{"method":"tools/call","params":{"x":{"name":"read"}}}'),
    ("tasks/create", '{"method":"Tools/Call","params":{"name":"read"}}'),
])  # fmt: skip
def test_an_unclear_request_is_refused(method: str, params: str) -> None:
    assert error_code(request(method, params)) == -32600


@each_row("types", ['"type":"ref/tool"', '"type":"ref/prompt","type":"ref/tool"', '"type":1'])
def test_a_completion_of_anything_but_a_prompt_or_a_resource_is_unknown(types: str) -> None:
    asked = f'{{"ref":{{{types},"name":"read"}}}}'
    assert error_code(request("completion/complete", asked)) == -32601
    assert Talk().asks("completion/complete", asked) == Forward()


@each_row(("before", "after"), [
    (f'{{"tools":[{RM},{READ}],"digest":"d"}}', f'{{"tools":[{READ}]}}'),
    (f'{{"tools":[{RM_LATER}],"prompts":[]}}', '{"tools":[],"prompts":[]}'),
    ('{"tools":[{"name":"rm"},{"name":"read"}]}', '{"tools":[{"name":"read"}]}'),
    ('{"tools":[{"name":"rm_later"},{"name":"new"}]}', None),
    ('{"tools":[{"name":"rm_later","description":"x"},{"name":"new","description":""}]}',
     '{"tools":[{"name":"new","description":""}]}'),
])  # fmt: skip
@each_row("method", ["vendor/list", "signature", "tasks/result"])
def test_a_list_of_tools_is_filtered_whatever_it_answers(
    method: str, before: str, after: str | None
) -> None:
    assert instead(answer(before, method)) == (after and answering(after))


@pytest.mark.parametrize(("method", "result"), [
    ("tools/list", f'{{"tools":[{READ}],"more":[{RM_LATER}]}}'),
    ("server/discover", f'{{"vendor":{{"tools":[{RM_LATER}]}},"x":{READ}}}'),
    ("initialize", f'{{"capabilities":{{}},"x":{RM_LATER}}}'),
    ("vendor/tool", f'{{"tool":{RM}}}'),
])  # fmt: skip
def test_the_definition_of_a_denied_tool_is_shown_nowhere(method: str, result: str) -> None:
    """Only its name tells that it is denied: the list at the start did not have it."""
    assert error_code(answer(result, method)) == -32603


@each_row(("written", "kept"), [
    ("0.0", "0.0"), ("1.50e3", "1.50e3"), ("60000.0", "60000.0"), ("6e4", "6e4"), ("-0", "0"),
    ("60000.1", "60000"), ("9e99", "60000"), ("1e400", "60000"), ("-1", "0"), ('"x"', "0"),
    (f"0.{'0' * 99}", "0"), ("9" * 40, "0"), ("null", "0"),
])  # fmt: skip
def test_how_long_a_filtered_list_may_be_kept(written: str, kept: str) -> None:
    """A client that caches a list must see changed patterns before long."""
    raw = listing_of(RM.encode(), more=f',"ttlMs":{written}')
    talking = talk()
    assert talking.asks("tools/list", '{"cursor":"2"}') == Forward()
    assert f'"ttlMs":{kept}}}'.encode() in (instead(talking.from_upstream(raw)) or b"")
