"""Requests about tools that MCP does not define, and what answers to them may show."""

from __future__ import annotations

import pytest

from mcp_tool_filter.core.policy.verdict import Forward, Reply, Verdict
from tests.core.conversation.test_long_lists import last_of
from tests.core.policy.talking import Talk, error_code, instead
from tests.make import answering, asking, at_once, definition
from tests.rows import each_row

READ, RM = (f'{{"name":"{name}","inputSchema":{{}}}}' for name in ("read", "rm"))  # as example
RM_LATER = definition("rm_later").decode()


def talk() -> Talk:
    return Talk(deny=["^rm"])


def request(method: str, params: str) -> Verdict:
    return talk().asks(method, params)


def answer(result: str, method: str = "tools/catalog") -> Verdict:
    return talk().hears(result, method)


@each_row(("method", "params"), [
    ("tools/resolve", '{"name":"%s","arguments":{}}'),
    ("tools/describe", '{"names":["read","%s"]}'),
    ("tools/describe", '{"toolNames":["read","%s"]}'),
    ("tools/vendor/x", '{"tool":{"name":"%s"}}'),
    ("tools/vendor", '{"tools":[{"name":"read"},{"name":"%s"}]}'),
    ("tools/call/batch", '{"calls":[{"name":"read"},{"name":"%s","arguments":{}}]}'),
    ("tools/batch", '{"requests":[{"call":{"name":"%s"}}]}'),
    ("tools/call/late", '{"call":{"tool":"%s"}}'),
    ("tools/get", '{"tool_name":"%s"}'),
    ("completion/complete", '{"ref":{"type":"ref/tool","name":"%s"}}'),
    ("tasks/create", '{"method":"tools/call","params":{"name":"%s"}}'),
    ("tasks/create", '{"request":{"method":"tools/resolve","params":{"name":"%s"}}}'),
])  # fmt: skip
def test_a_request_about_a_hidden_tool_is_answered_as_its_call(method: str, params: str) -> None:
    for hidden in ("rm", "rm_later", "unknown"):
        asked = request(method, params % hidden)
        assert isinstance(asked, Reply)
        assert asked == request("tools/call", f'{{"name":"{hidden}"}}')
    asked_for_rm = asking(method, params=params % "rm")
    exchange = at_once(talk().conversation.from_client(asked_for_rm)).exchange
    assert exchange.tool == "rm"  # as the audit log names it
    assert request(method, params % "read") == Forward()


@each_row("key", ["groups", "servers", "prompts", "resources", "resourceTemplates", "skills"])
def test_names_of_other_things_need_no_tool(key: str) -> None:
    named = f'{{"{key}":[{{"name":"%s"}}]}}'
    assert request("tools/describe", named % "unknown") == Forward()
    assert isinstance(request("tools/describe", named % "rm"), Reply)


@each_row("key", ["id", "tool_id", "toolIds", "target", "uri", "uris"])
def test_an_id_that_is_the_name_of_a_hidden_tool_names_it(key: str) -> None:
    for id, is_refused in (
        ("rm", True), ("tool://a/rm", True), ("rm_later", False), ("17", False), ("rm/x", False)
    ):  # fmt: skip
        value = f'["{id}"]' if key.endswith("s") else f'"{id}"'
        assert isinstance(request("tools/resolve", f'{{"{key}":{value}}}'), Reply) is is_refused


@each_row(("method", "params"), [
    ("completion/complete", '{"ref":{"type":"ref/prompt","name":"rm"}}'),
    ("tasks/create", '{"method":"rm","params":{"name":"rm"}}'),
    ("tasks/create", '{"method":"tools/list","params":{}}'),
    ("tasks/create", '{"method":"tools/call","params":"rm"}'),
    ("vendor/x", '{"name":"rm","call":{"method":"GET","params":{"name":"rm"}}}'),
    ("vendor/x", '{"method":17,"params":[{"method":"tools/call"}]}'),
])  # fmt: skip
def test_what_is_no_request_about_a_tool_passes(method: str, params: str) -> None:
    assert request(method, params) == Forward()


def test_a_request_about_tools_may_have_no_params() -> None:
    raw = asking("tools/resolve", params="{}").replace(b',"params":{}', b"")
    assert talk().from_client(raw) == Forward()


@pytest.mark.parametrize("params", [
    '{"for":{"name":"%s"},"arguments":{"name":"rm"}}', '{"groups":[{"name":"%s"}]}',
])  # fmt: skip
def test_an_object_that_has_a_name_deep_in_a_request_may_be_no_tool(params: str) -> None:
    for name, is_refused in (("rm", True), ("rm_later", True), ("me", False)):
        assert isinstance(request("tools/search", params % name), Reply) is is_refused


@pytest.mark.parametrize("params", [
    '{"name":"read","Name":"rm"}', '{"name":"read","Arguments":{}}', '{"name":["rm",1]}', '["rm"]',
    '{"toolname":"rm"}',
])  # fmt: skip
def test_an_unclear_request_about_tools_is_refused(params: str) -> None:
    within = f'{{"method":"tools/call","params":{{"x":{params}}}}}'
    for answered in (
        request("tools/resolve", params),
        request("tasks/create", within),  # without a name
        request("tasks/create", within.replace("tools/call", "Tools/Call")),
    ):
        assert isinstance(answered, Reply)
        assert error_code(answered) == -32600


@each_row(("before", "after"), [
    ('{"tools":[{"name":"rm","x":1} , {"name":"read" }]}', '{"tools":[{"name":"read" }]}'),
    ('{"tools":[{"name":"new"},{"name":"read"}]}', '{"tools":[{"name":"read"}]}'),
    ('{"entries":[{"name":"read"},{"name":"new"}]}', '{"entries":[{"name":"read"}]}'),
    ('{"a":{"b":[[{"name":"rm"}],{"x":[{"name":"rm_2"}]}]}}', '{"a":{"b":[[],{"x":[]}]}}'),
    ('{"g":[{"name":"g","tools":["rm","read"]}]}', '{"g":[{"name":"g","tools":["read"]}]}'),
    ('{"tools":{"rm":{"x":1},"read":{}}}', '{"tools":{"read":{}}}'),
    ('{"tools":[{"name":"read","Name":"rm"}]}', '{"tools":[]}'),
    (f'{{"tools":[{RM},{READ}],"digest":"d"}}', f'{{"tools":[{READ}]}}'),
    ('{"tools":[{"name":"rm"}],"ttlMs":900000,"cacheScope":"public"}',
     '{"tools":[],"ttlMs":60000,"cacheScope":"private"}'),
    ('{"tags":[{"name":"a"}],"tools":[{"name":"read","tags":[{"name":"b"}]}]}', None),
    ('{"entries":[{"toolName":"rm_2"},{"tool":"read"},{"x":{"tool":{"name":"rm"}}}]}',
     '{"entries":[{"tool":"read"}]}'),
    ('{"by":{"read":{"a":1},"rm_2":{"a":2},"x":{"a":3}}}', '{"by":{"read":{"a":1},"x":{"a":3}}}'),
    ('{"tools":[{"name":"read","like":[{"name":"rm"}],"arguments":[{"name":"rm"}]}]}',
     '{"tools":[{"name":"read","like":[],"arguments":[{"name":"rm"}]}]}'),
    ('{"tools":[{"name":"read","tags":[{"name":"rm_x"}],"by":{"name":"rm_co"}}]}', None),
    ('{"tool":{"name":"read","parameters":[{"name":"rm_dir"}]}}', None),
    ('{"sets":[{"name":"rm_all","tools":[{"name":"rm"},{"name":"read"}]}]}',
     '{"sets":[{"name":"rm_all","tools":[{"name":"read"}]}]}'),
    ('{"tools":[{"toolId":"rm"},{"name":"read"}]}', '{"tools":[{"name":"read"}]}'),
    ('{"groups":[{"name":"rm_group","tools":["rm","read"]}]}',
     '{"groups":[{"name":"rm_group","tools":["read"]}]}'),
    ('{"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"rm","version":"1"}}}', None),
    ('{"entries":[{"name":"rm","digest":"d"},{"name":"read","digest":"e"}]}',
     '{"entries":[{"name":"read","digest":"e"}]}'),
    (f'{{"tool":{definition("read", ',"annotations":{"readOnlyHint":true}').decode()}}}', None),
])  # fmt: skip
def test_hidden_tools_are_removed_at_any_depth(before: str, after: str | None) -> None:
    assert instead(answer(before)) == (after and answering(after))


@pytest.mark.parametrize("shown", [
    f'{{"tool":{RM}}}', '{"tool":{"name":"new"}}', '{"found":{"name":"rm"}}',
    '{"tool":{"name":"read","inputSchema":{},"x":{"tools":[{"name":"rm","inputSchema":{}}]}}}',
])  # fmt: skip
def test_an_answer_from_which_a_hidden_tool_cannot_be_removed_is_refused(shown: str) -> None:
    assert error_code(answer(shown, "tools/resolve")) == -32603


@pytest.mark.parametrize(("method", "result"), [
    ("tools/list", f'{{"tools":[{READ}],"more":[{RM_LATER}]}}'),
    ("server/discover", f'{{"vendor":{{"tools":[{RM_LATER}]}},"x":{READ}}}'),
    ("initialize", f'{{"capabilities":{{}},"x":{RM_LATER}}}'),
])  # fmt: skip
def test_a_denied_tool_that_was_never_listed_is_shown_nowhere(method: str, result: str) -> None:
    """Only its name tells that it is denied: the list at the start did not have it."""
    assert error_code(answer(result, method)) == -32603


@each_row(("before", "after"), [
    ('"more":[{"name":"rm_later"},{"name":"read"}]', '"more":[{"name":"read"}]'),
    ('"names":["rm_later" ,"read"]', '"names":["read"]'),
    ('"a":{"tools":["rm"]},"b":1.0', '"a":{"tools":[]},"b":1.0'),
    ('"_meta":{"v/x":[{"name":"rm"}]}', '"_meta":{"v/x":[]}'),
    ('"found":{"name":"rm_later"},"ttlMs":900000', '"ttlMs":60000'),
    ('"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"rm"}}', None),
    ('"_meta":{"v/x":[{"name":"a"}]},"server":{"name":"s"}', None),
])  # fmt: skip
@each_row("is_long", [False, True])
@each_row("listed", [(READ, READ), (f"{RM},{READ}", READ)])
def test_what_is_beside_the_tools_of_a_list_names_no_hidden_tool(
    listed: tuple[str, str], before: str, after: str | None, *, is_long: bool
) -> None:
    talking, pad = talk(), ',"pad":"%s"' % ("x" * 300_000 if is_long else "")
    assert talking.asks("tools/list", '{"cursor":"2"}') == Forward()
    text = answering(f'{{"tools":[{listed[0]}],{before}{pad}}}')
    decision = talking.conversation.judge_from_upstream(text)
    judged = last_of(decision)[0] if is_long else at_once(decision)
    kept = answering(f'{{"tools":[{listed[1]}],{after or before}{pad}}}')
    assert instead(judged.verdict) == (None if kept == text else kept)


def test_a_frame_with_more_than_the_tools_is_not_used_again() -> None:
    """It might name a tool that a later pattern hides."""
    talking = talk()
    for more in (',"x":[{"name":"later"}]', ',"x":1'):
        talking.hears(f'{{"tools":[{READ}]{more}}}', "tools/list")
    assert talking.conversation.kind.envelope is not None
    assert "later" not in talking.conversation.kind.envelope.after


def test_with_allow_an_object_that_is_no_tool_stays() -> None:
    shown = f'{{"tool":{READ},"provider":{{"name":"Acme"}}}}'
    assert Talk(allow=["^read$"]).hears(shown, "tools/resolve") == Forward()
    for hidden in ('{"tool":{"name":"rm_later"}}', '{"found":{"name":"rm"}}'):
        assert error_code(Talk(allow=["^read$"]).hears(hidden, "tools/resolve")) == -32603


@pytest.mark.parametrize(("method", "before", "after"), [
    ("groups/list", '{"groups":[{"name":"g","tools":["rm_later","read"]}]}',
     '{"groups":[{"name":"g","tools":["read"]}]}'),
    ("signature", f'{{"tools":[{RM},{READ}],"prompts":[]}}', f'{{"tools":[{READ}],"prompts":[]}}'),
])  # fmt: skip
def test_groups_and_signatures_name_no_hidden_tool(method: str, before: str, after: str) -> None:
    assert instead(answer(before, method)) == answering(after)
