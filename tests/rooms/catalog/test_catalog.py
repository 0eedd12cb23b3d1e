"""Prompts, resources and skills: what lists show, and what may be asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.conversation.memory import example as fetched
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.errors import (
    BlankPattern,
    EmptyList,
    InvalidPattern,
    ProtocolError,
    UnsafePattern,
)
from mcp_tool_filter.core.messages.limits import R2025_11_25, R2026_07_28
from mcp_tool_filter.core.policy.config import refuse_to_open
from mcp_tool_filter.core.policy.effects import waits
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.core.process.plugs import settled
from mcp_tool_filter.rooms.catalog.catalog import CatalogFilter, with_catalog
from tests.core.conversation.test_long_lists import last_of
from tests.core.policy.talking import Talk, error_code, instead, said
from tests.make import answering, asking, judge_from_upstream, rewritten
from tests.rows import each_row

URIS = ["^file:///etc/", "^note:hidden", "^ui://secret/", "^https://b\u00fccher\\.x/"]
DENIED = {
    "deny_prompts": ["^secret"],
    "deny_resources": [",".join(URIS), "^wss://xn--bcher-kva\\.x/"],
    "deny_skills": ["^refunds$"],
}


MARKS = "\u0f73\u0301\u0316" * 11  # to sort them takes quadratic time


def talk(revision: str = R2025_11_25) -> Talk:
    return Talk(revision, **DENIED)


def request(method: str, params: str) -> Verdict:
    return talk().asks(method, params)


def answer(method: str, result: str, talking: Talk | None = None) -> Verdict:
    """Return what becomes of the upstream's answer to an allowed request."""
    params = '{"uri":"file:///ok"}' if method.endswith(("/read", "/get")) else "{}"
    return (talking or talk()).hears(result, method, params)


NAMED = {
    ("secret", "greet"): [
        ("prompts/get", '{"name":"%s"}'),
        ("completion/complete", '{"ref":{"type":"ref/prompt","name":"%s"}}'),
        ("tasks/create", '{"method":"prompts/get","params":{"name":"%s"}}'),
    ],
    (" secret\\u200b", "not secret"): [("prompts/get", '{"name":"%s"}')],
    (MARKS, MARKS[:30]): [("prompts/get", '{"name":"%s"}')],
    ("a" * 100_000, "a" * 1000): [("prompts/get", '{"name":"%s"}')],
    ("file:///etc/{a}", "file:///{path}"): [
        ("completion/complete", '{"ref":{"type":"ref/resource","uri":"%s"}}'),
    ],
    ("file:///etc/passwd", "file:///home/etc/a"): [
        ("resources/subscribe", '{"uri":"%s"}'), ("resources/unsubscribe", '{"uri":"%s"}'),
    ],
    ("skill://refunds", "skill://refund"): [("resources/directory/read", '{"uri":"%s"}')],
    ("skill://a/refunds/SKILL.md", "skill://a/SKILL.md"): [("skills/get", '{"uri":"%s"}')],
    ("refunds", "faq"): [("skills/get", '{"name":"%s"}')],
}  # fmt: skip
"""Names that are denied and allowed, and the requests that may hold them."""
READ = {
    "file:///home/etc/a": ["file:///etc/passwd", "file:\\\\\\\\/etc/x", "file:etc/x", "/etc/x"],
    "file:///": ["file:///etc%20/x", "file:///e\\u0000tc/x", "FILE:///a/../etc/%70asswd"],
    "note:": ["note:%68idden", "NOTE:hidden", "note:hidden."],
    "ui://app": ["ui://secret/app", "ui://me@secret/x", "ui://me@you@secret:80/x"],
    "ui://secret.app/x": ["UI://SECRET:1/x", "ui://./secret/x", "ui:///secret/x", "ui:secret/x"],
    "https://xn--bcher-kv.x/": [
        "https://xn--bcher-kva.x/a", "HTTPS://XN--BCHER-KVA.x/a", "https://B\u00dcCHER\u3002x/a",
        "https:///me@xn--bcher-kva.x/a", "https:/me:pw@b\u00fccher.x:443/a", "ui://me@./secret/x",
        "wss://b\u00fccher.x/a", "wss://me@bu\u0308cher.x:1/a",
    ],
    "skill://re/funds/x": ["skill:refunds/x", "skill://me@refunds:1/x", "skill://a/refunds%20/x"],
    "file://etcx/x": ["file://etc/x"],
    f"x:{MARKS[:30]}": [f"x:{MARKS}", f"x:{MARKS[:30]}\\u200b{MARKS}"],
    "skill://acme/other/refunds-faq.md": [
        "skill://refunds/SKILL.md", "skill://acme/billing/refunds/SKILL.md",
        "skill://acme/refunds/nested/scripts/a.py", "skill://acme/../refunds/a.md",
        "SKILL://acme/%72efunds/a.md", "github://o/r/skills/refunds/a/b.md",
    ],
}  # fmt: skip
"""URIs that may be read, and others that may not."""
ASKED = [(*asked, *names) for names, all_asked in NAMED.items() for asked in all_asked] + [
    ("resources/read", '{"uri":"%s"}', uri, allowed) for allowed in READ for uri in READ[allowed]
]


DISGUISES = [
    ("/etc", "%2fetc"), ("/etc", "//etc"), ("/etc", "/./etc"), ("/etc", "/x/../etc"), ("c/", "c\\"),
    ("/etc", "/a;b/../etc"), ("/etc", "/%2e%2e/..%2fetc"), ("%", "%25"), ("%", "%\u200b"),
    ("e", "%65"), ("e", "\uff45"), ("tc", "t\u200bc"), ("tc", "t\tc"), ("passwd", "%70assw%64"),
    (":///", ":/"), (":///", "://localhost/"), (":///", "://localhost:80/"), (":///", "://me@host/"),
    ("file:", " FILE:"), ("wd", "wd?x#y"),
]  # fmt: skip


def filter_of(options: Mapping[str, Sequence[str]]) -> CatalogFilter:
    catalog = with_catalog(parse_config(options)).catalog
    assert isinstance(catalog, CatalogFilter)
    return catalog


@given(st.lists(st.sampled_from(DISGUISES), max_size=6))
@example([(":///", "://me@host/"), ("/etc", "%2fetc"), ("%", "%\u200b")])
def test_no_disguise_of_a_denied_uri_passes(disguises: list[tuple[str, str]]) -> None:
    catalog, uri = filter_of(DENIED), "file:///etc/passwd"
    for old, new in disguises:
        uri = uri.replace(old, new, 1)
    assert catalog.denying_uri(uri)


@each_row(("method", "params", "denied", "allowed"), ASKED)
def test_denied_things_are_not_found(method: str, params: str, denied: str, allowed: str) -> None:
    verdict = request(method, params % denied)
    assert isinstance(verdict, Reply)
    assert verdict.reason.why is Why.DENIED
    assert verdict.reason.thing in ("prompt", "resource", "skill")
    assert request(method, params % allowed) == Forward()
    assert Talk(deny=["^rm"]).asks(method, params % denied) == Forward()


PROMPT, SKILL = ({"code": -32602, "message": f"Unknown {it}: x"} for it in ("prompt", "skill"))
RESOURCE = {"message": "Resource not found", "data": {"uri": "file:///etc/a"}}
NEWER = f'"_meta":{{"io.modelcontextprotocol/protocolVersion":"{R2026_07_28}"}}'


@each_row(("revision", "method", "params", "error"), [
    (R2025_11_25, "prompts/get", '{"name":"x"}', PROMPT),
    (R2025_11_25, "resources/read", '{"uri":"file:///etc/a"}', {"code": -32002, **RESOURCE}),
    (R2026_07_28, "resources/read", '{"uri":"file:///etc/a"}', {"code": -32602, **RESOURCE}),
    (R2025_11_25, "resources/read", f'{{"uri":"file:///etc/a",{NEWER}}}',
     {"code": -32602, **RESOURCE}),
    (R2025_11_25, "resources/directory/read", '{"uri":"file:///etc/a"}',
     {"code": -32602, **RESOURCE}),
    (R2026_07_28, "skills/get", '{"name":"x"}', SKILL),
])  # fmt: skip
def test_the_error_is_that_of_the_revision(
    revision: str, method: str, params: str, error: object
) -> None:
    talking = Talk(revision, deny_prompts=["x"], deny_skills=["x"], deny_resources=["etc"])
    assert said(talking.asks(method, params)) == {"jsonrpc": "2.0", "id": 1, "error": error}


@each_row(("method", "params"), [
    ("prompts/get", '{"name":"a","name":"secret"}'),
    ("prompts/get", '{"name":"a","Name":"secret"}'),
    ("prompts/get", '["secret"]'), ("prompts/get", '{"name":["secret"]}'),
    ("x/prompts%2Fget", '{"name":"secret"}'),
    ("resources/read", '{"uri":"file:///a","URI":"file:///etc/a"}'),
    ("resources/read", '{"uri":"file:///\\ud800"}'),
    ("completion/complete", '{"ref":{"name":"a","Name":"secret"}}'),
    ("subscriptions/listen", '{"notifications":{"resourcesubscriptions":["file:///etc/a"]}}'),
    ("subscriptions/listen", '{"notifications":{"resourceSubscriptions":"file:///etc/a"}}'),
])  # fmt: skip
def test_what_could_be_read_in_two_ways_is_refused(method: str, params: str) -> None:
    verdict = request(method, params)
    assert isinstance(verdict, Reply)
    assert verdict.reason.why is Why.MALFORMED


def test_a_notification_in_place_of_a_request_is_dropped() -> None:
    raw = b'{"jsonrpc":"2.0","method":"prompts/get","params":{"name":"secret"}}'
    assert isinstance(talk().from_client(raw), Drop)


LISTED = [
    ("prompts/list", "prompts", '{"name":"secret"}', '{"name":"greet" , "x":1.0}'),
    ("resources/list", "resources", '{"uri":"file:///etc/a"}', '{"uri":"file:///b","name":"b"}'),
    ("resources/list", "resources", '{"uri":"skill://refunds/SKILL.md"}', '{"uri":"skill://b"}'),
    ("resources/templates/list", "resourceTemplates", '{"uriTemplate":"file:///etc/{a}"}',
     '{"uriTemplate":"file:///{+path}"}'),
    ("resources/directory/read", "resources", '{"uri":"skill://a/refunds"}', '{"uri":"skill://a"}'),
    ("resources/read", "contents", '{"uri":"file:///etc/a","text":""}', '{"text":"","uri":"b"}'),
    ("skills/list", "skills", '{"uri":"git://o/x/SKILL.md","frontmatter":{"name":"refunds"}}',
     '{"uri":"skill://b/SKILL.md","frontmatter":{"name":"b"}}'),
    ("skills/list", "skills", '{"name":"refunds"}', '{"name":"b"}'),
]  # fmt: skip


@each_row(("method", "member", "denied", "allowed"), LISTED)
def test_only_denied_things_are_hidden(method: str, member: str, denied: str, allowed: str) -> None:
    def written(listed: str) -> str:
        things = listed % {"a": allowed, "d": denied}
        return f'{{ "nextCursor":"c", "{member}" : {things}, "x" : 1.0 }}'

    for before, after in [
        ("[ %(a)s ]", None), ("[]", None),
        ("[%(d)s,%(a)s]", "[%(a)s]"), ("[ %(a)s , %(d)s ]", "[ %(a)s ]"),
        ("[ %(d)s ,\t%(a)s,%(d)s,  %(a)s ]", "[ %(a)s,  %(a)s ]"),
    ]:  # fmt: skip
        verdict = answer(method, written(before))
        assert instead(verdict) == (after and answering(written(after)))
        assert isinstance(verdict, Forward) or verdict.reason.why is Why.HIDDEN


@each_row(("method", "member", "denied", "allowed"), LISTED)
def test_odd_things_are_not_listed(method: str, member: str, denied: str, allowed: str) -> None:
    """Nobody can judge them for sure."""
    key = "uri" if member == "contents" else next(iter(json.loads(allowed)))
    twice, number = f'{{"{key}":"a","{key.upper()}":"b"}}', f'{{"{key}":1}}'
    for odd in (twice, number, "{}", f"[{denied}]", denied.replace('":"', '":"a\\ud800')):
        verdict = answer(method, f'{{"{member}":[{odd},{allowed}]}}')
        assert said(verdict)["result"][member] == [json.loads(allowed)], odd
    for before in ("", f'"{member}":[],'):
        for name in {member.upper(), member.capitalize(), *([member] if before else [])}:
            broken = f'{{{before}"{name}":[{denied}]}}'
            assert error_code(answer(method, broken)) == -32603, broken


def test_a_read_that_shows_only_denied_contents_finds_nothing() -> None:
    verdict = answer("resources/read", '{"contents":[{"uri":"file:///etc/a","text":"x"}]}')
    assert said(verdict)["error"] == {"code": -32002, "message": "Resource not found"}
    assert error_code(answer("resources/read", '{"contents":{"uri":"file:///etc/x"}}')) == -32603


def test_an_allowed_skill_does_not_list_the_files_of_a_denied_skill_in_it() -> None:
    own, nested = '{"uri":"skill://a/SKILL.md","digest":"d"}', '{"uri":"skill://a/refunds/x.md"}'
    skill = '{"uri":"skill://a/SKILL.md","resources":[%s]}'
    for method, around in (("skills/list", '{"skills":[%s]}'), ("skills/get", '{"skill":%s}')):
        verdict = answer(method, around % (skill % f"{own},{nested}"))
        assert rewritten(verdict) == answering(around % (skill % own))
    shown = answer("skills/get", '{"skill":{"uri":"skill://refunds/SKILL.md"}}')
    assert error_code(shown) == -32602


def test_the_manifest_of_a_skill_does_not_list_the_files_of_a_denied_skill_in_it() -> None:
    """FastMCP serves it as a resource."""
    files = [{"path": "SKILL.md", "size": 7}, {"path": "refunds/x.md", "size": 8}]
    content = {"uri": "skill://a/_manifest", "text": json.dumps({"skill": "a", "files": files})}

    def read(uri: str) -> Verdict:
        result = json.dumps({"contents": [{**content, "uri": uri}]})
        return answer("resources/read", result)

    [shown] = said(read("skill://a/_manifest"))["result"]["contents"]
    assert json.loads(shown["text"]) == {"skill": "a", "files": files[:1]}
    assert read("skill://a/files.json") == Forward()


def test_files_of_a_skill_of_another_scheme_are_denied_once_a_list_has_shown_it() -> None:
    talking, file = talk(), '{"uri":"db://rows/17/a.md"}'
    assert talking.asks("resources/read", file) == Forward()
    entry = '{"uri":"db://rows/17/SKILL.md","frontmatter":{"name":"refunds"}}'
    answer("skills/list", f'{{"skills":[{entry}]}}', talking)
    assert isinstance(talking.asks("resources/read", file), Reply)
    assert talking.asks("resources/read", '{"uri":"db://rows/18/a.md"}') == Forward()


def test_a_subscription_loses_its_denied_resources() -> None:
    params = '{"notifications":{"resourceSubscriptions":["file:///etc/a" , "file:///b"]}}'
    kept = asking("subscriptions/listen", params=params.replace('"file:///etc/a" , ', ""))
    assert rewritten(request("subscriptions/listen", params)) == kept
    only = '{"notifications":{"resourceSubscriptions":["file:///etc/a"]%s}}'
    for less in ("", ',"toolsListChanged":false', ',"taskIds":null'):
        assert error_code(request("subscriptions/listen", only % less)) == -32602
    for more in (',"toolsListChanged":true', ',"taskIds":["1"]'):
        assert isinstance(request("subscriptions/listen", only % more), Rewrite)


def test_news_of_a_denied_resource_are_dropped() -> None:
    news = '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"%s"}}'
    for uri, kind in (("file:///etc/a", Drop), ("FILE:///%65tc/a", Drop), ("file:///b", Forward)):
        assert isinstance(talk().from_upstream((news % uri).encode()), kind)


def test_links_in_the_result_of_a_tool_stay() -> None:
    result = '{"content":[{"type":"resource_link","uri":"file:///etc/a","name":"a"}]}'
    assert talk().hears(result, "tools/call", '{"name":"read"}') == Forward()


def test_a_hidden_list_is_private_fresh_and_unsigned() -> None:
    before = (
        '{"listDigest":"x","prompts":[{"name":"secret"}],"ttlMs":600000,"cacheScope":"public",'
        '"_meta":{"v.example/signature":{"a":1},"k":1},"etag":"e"}'
    )
    after = '{"prompts":[],"ttlMs":60000,"cacheScope":"private","_meta":{"k":1}}'
    assert rewritten(answer("prompts/list", before)) == answering(after)
    assert answer("prompts/list", before.replace("secret", "greet")) == Forward()


def test_a_known_list_of_prompts_is_judged_again_when_the_patterns_change() -> None:
    """An equal list is not read twice, so nothing of what was decided may outlive its patterns."""
    talking, listed = Talk(deny_prompts=["^secret"]), '{"prompts":[{"name":"secret"},{"name":"a"}]}'
    for _ in range(2):
        assert b"secret" not in rewritten(answer("prompts/list", listed, talking))
    in_force = talking.conversation.policy
    in_force.adopt(settled(ROOMS, parse_config({"deny_prompts": ["^a"]})))
    assert b"secret" in rewritten(answer("prompts/list", listed, talking))
    tools = '{"tools":[{"name":"read","inputSchema":{}},{"name":"new","inputSchema":{}}]}'
    for method in ("tools/list", "prompts/list", "prompts/list", "tools/list"):
        assert b"new" not in rewritten(answer(method, tools, talking))


@pytest.mark.parametrize("option", DENIED)
def test_patterns_are_checked_as_those_for_tools(option: str) -> None:
    for wrong, error in (("(", InvalidPattern), ("(a+)+", UnsafePattern), ("a,", BlankPattern)):
        with pytest.raises(error):
            parse_config({option: [wrong]})
    with pytest.raises(EmptyList):
        parse_config({option: []})
    with pytest.raises(EmptyList):
        refuse_to_open(parse_config({option: ["a"]}), parse_config())
    config = parse_config({option: ["^A,b{1,2}"], "ignore_case": "true"})
    assert [one.text for patterns in config.of_catalog for one in patterns] == ["^A", "b{1,2}"]
    assert not parse_config({option: ["a"], "strict": "true"}).denies_nothing


def test_a_long_list_of_escaped_uris_is_judged_in_steps() -> None:
    """Each has many spellings; other clients are served meanwhile."""
    talking = talk()
    odd = '{"uri":"\\ud800%2e","name":"50% of it"}'
    denied = [f'{{"uri":"file:///%2565tc/x/../{number}"}}' for number in range(8000)]
    talking.asks("resources/list")
    raw = answering(f'{{"resources":[{",".join([odd, *denied])}]}}')
    judged, steps = last_of(judge_from_upstream(talking.conversation, raw))
    assert said(judged.verdict)["result"]["resources"] == []
    assert steps >= len(denied) / 20


@each_row(("method", "result"), [
    ("resources/list", '{"resources":[%s]}'),
    ("resources/read", '{"contents":[{"uri":"skill://a/_manifest","text":"{\\"files\\":[%s]}"}]}'),
    ("skills/list", '{"skills":[%s]}'),
])  # fmt: skip
def test_all_uris_of_an_answer_share_one_budget(
    method: str, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may take long to judge; an upstream stopped the filter with one answer."""
    monkeypatch.setattr("mcp_tool_filter.rooms.catalog.catalog._MOST_SAID", 5_000_000)
    for count, may_pass in ((2, True), (600, False)):
        each = [f"a{number}{'%2565' * 400}" for number in range(count)]
        if "_manifest" in result:
            listed = ",".join(f'{{\\"path\\":\\"{one}\\"}}' for one in each)
        elif "skills" in result:
            listed = ",".join(f'{{"name":"{one}"}}' for one in each)
        else:
            listed = ",".join(f'{{"uri":"file:///{one}","name":"a"}}' for one in each)
        talking = talk()
        talking.asks(method, '{"uri":"skill://a/_manifest"}' if method.endswith("read") else "{}")
        decision = judge_from_upstream(talking.conversation, answering(result % listed))
        judged = last_of(decision)[0] if waits(decision) else decision
        is_error = judged.verdict != Forward() and "error" in said(judged.verdict)
        assert is_error is not may_pass, (method, count)


@each_row(("method", "params"), [
    ("subscriptions/listen", '{"notifications":{"resourceSubscriptions":[%s]}}'),
    ("resources/read", '{"uri":%s}'),
])  # fmt: skip
def test_many_uris_that_take_long_to_judge_are_refused(method: str, params: str) -> None:
    """One request of a megabyte kept all clients waiting for a minute."""
    for plain, count, may_pass in (
        ("file:///a/x/%d", 1000, True),
        ("file:///a%%25/%%2565tc/x/../%d", 100, True),
        ("file:///a%%25/%%2565tc/x/../%d", 1000, False),
        (f"file:///%d/{'%%2565' * 500}", 30, False),
    ):
        uris = [f'"{plain % number}"' for number in range(count)]
        raw = asking(method, params=params % ",".join(uris))
        if method == "resources/read":
            each = [asking(method, params=params % uri, id=uri) for uri in uris]
            raw = b"[" + b",".join(each) + b"]"
            inside = ",".join(f'{{"method":"{method}","params":{params % uri}}}' for uri in uris)
            carried = talk().asks("tasks/create", f'{{"all":[{inside}]}}')
            assert (carried == Forward()) is may_pass, (plain, count)
        verdict = talk().from_client(raw)
        assert (verdict == Forward()) is may_pass, (plain, count)


def test_a_long_document_that_is_no_message_is_not_taken_for_one() -> None:
    """Answers of other paths pass; they were refused if they were longer than 256 KB."""
    with pytest.raises(ProtocolError):
        talk().conversation.from_upstream(b"<html>" + b"a" * 300_000)


@each_row(("method", "result"), [
    ("prompts/list", '{"items":[{"name":"secret"}],"prompts":[{"name":"a","tags":["secret"]}]}'),
    ("vendor/list", '{"prompts":[{"name":"secret","uri":"file:///etc/a"}]}'),
    ("tasks/result", '{"content":[],"resources":["note:hidden"]}'),
])  # fmt: skip
def test_lists_that_nobody_has_defined_are_not_read(method: str, result: str) -> None:
    assert answer(method, result) == Forward()


@pytest.mark.parametrize("member", ["prompts", "resources", "resourceTemplates", "skills"])
def test_in_an_answer_to_nothing_that_we_know_each_list_counts(member: str) -> None:
    """A stream that is resumed may repeat it."""
    key = {"prompts": "name", "resourceTemplates": "uriTemplate"}.get(member, "uri")
    name = "secret" if member == "prompts" else "skill://refunds/SKILL.md"
    shown = talk().from_upstream(answering(f'{{"{member}":[{{"{key}":"{name}"}}]}}', id="99"))
    assert said(shown)["result"] == {member: []}


@each_row(("options", "refused", "passing"), [
    (["deny_prompts"], "prompts completion", "tools resources skills"),
    (["deny_resources"], "resources skills completion", "tools prompts"),
    (["deny_skills"], "resources skills completion", "tools prompts"),
])  # fmt: skip
def test_a_method_that_nobody_has_defined_is_unknown(
    options: list[str], refused: str, passing: str
) -> None:
    talking = Talk(None, **{option: DENIED[option] for option in options})
    for topic in refused.split():
        for method in (f"{topic}/vendor", f"{topic.title()}/Vendor/list", f"/{topic}.vendor"):
            error = {"code": -32601, "message": "Method not found"}
            assert said(talking.asks(method)) == {"jsonrpc": "2.0", "id": 1, "error": error}
    for topic in passing.split():
        assert talking.asks(f"{topic}/vendor") == Forward()


@pytest.mark.parametrize("option", DENIED)
def test_an_option_leaves_other_things_alone(option: str) -> None:
    for kind, method, params in (
        ("deny_prompts", "prompts/get", '{"name":"a","Name":"b"}'),
        ("deny_resources", "x/resources/read", '{"uri":"a"}'),
        ("deny_resources", "resources/read", '["a"]'),
    ):
        is_of_it = option == kind or (option == "deny_skills" and kind == "deny_resources")
        verdict = Talk(None, **{option: DENIED[option]}).asks(method, params)
        assert isinstance(verdict, Reply if is_of_it else Forward)


def test_what_is_long_is_not_remembered() -> None:
    catalog = filter_of(DENIED)
    talking = talk()
    for number in range(3):
        assert catalog.denying_uri(f"file:///{'a' * 2000}{number}") is None
        talking.asks(f"vendor/{'a' * 900}{number}")
    assert not catalog._denying_uri.cache_info().currsize
    assert not catalog._asks_once.cache_info().currsize
    assert catalog.denying_uri("file:///a") is None
    assert catalog._denying_uri.cache_info().currsize == 1


def page(**result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


LISTS = ("prompts/list", "resources/list", "resources/templates/list", "skills/list")
PROMPTS, RESOURCES, TEMPLATES, SKILLS = LISTS
ANYTHING, SKILL_T = page(resourceTemplates=[{"uriTemplate": "{a}"}]), page(skills=[{"name": "t"}])


@each_row(("answers", "unmatched"), [
    ({}, []), ({PROMPTS: ()}, ["^p"]),
    ({PROMPTS: (page(prompts=[{"name": "a"}]), page(prompts=[{"name": "p"}]))}, []),
    ({PROMPTS: (b"[]", b"?", page(prompts=1), page(x=1))}, ["^p"]),
    ({RESOURCES: ()}, []),  # it may have templates
    ({RESOURCES: (), TEMPLATES: ()}, ["^r:"]),
    ({RESOURCES: (page(resources=[{"uri": "R:1"}]),), TEMPLATES: ()}, []),
    ({RESOURCES: (), TEMPLATES: (ANYTHING,)}, []),
    ({SKILLS: (page(skills=[]),), RESOURCES: ()}, []),  # none has to be listed
    ({SKILLS: (SKILL_T,), RESOURCES: ()}, ["^s$"]),
    ({SKILLS: (SKILL_T,), RESOURCES: (page(resources=[{"uri": "skill://s/a.md"}]),)}, []),
])  # fmt: skip
def test_a_pattern_that_matches_nothing_is_found(
    answers: dict[str, tuple[bytes, ...]], unmatched: list[str]
) -> None:
    options = {"deny_prompts": ["^p"], "deny_resources": ["^r:"], "deny_skills": ["^s$"]}
    config, catalog = with_catalog(parse_config(options)), filter_of(options)
    assert catalog.lists == LISTS
    assert [one.text for one in catalog.survey(answers)[1]] == unmatched
    policy = PolicyInForce(config=config, fetched=replace(fetched("a"), others=answers))
    assert [one.text for one in policy.snapshot.unmatched] == unmatched
    assert policy.snapshot is policy.snapshot
