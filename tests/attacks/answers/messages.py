"""Messages in which some client finds the denied tool."""

# ruff: noqa: E501 - tables

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.attacks.answers.base import (
    ASKED,
    DEFINITION,
    SSE,
    TEXT,
    Attack,
    event,
    stream,
)
from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL, MARK
from tests.mcp_upstream import RESULT, tool_list
from tests.raw_upstream import answer


def messages() -> Iterator[tuple[str, str]]:
    """Yield messages in which some client finds the denied tool."""
    params = f'{{"tools":[{DEFINITION}]}}'
    DEFINITION.replace('"name"', '"title"')
    yield from {
        "plain": TEXT,
        "id 2": TEXT.replace('"id":1', '"id":2'),
        "id as text": TEXT.replace('"id":1', '"id":"1"'),
        "id 1.0": TEXT.replace('"id":1', '"id":1.0'),
        "id null": TEXT.replace('"id":1', '"id":null'),
        "no id": TEXT.replace(', "id":1', ""),
        "another id": TEXT.replace('"id":1', '"id":"never asked"'),
        "escaped name": TEXT.replace(DENIED, "wipe\\u005fdisk"),
        "escaped key": TEXT.replace('"tools"', '"t\\u006fols"').replace('"name"', '"n\\u0061me"'),
        "Tools": TEXT.replace('"tools"', '"Tools"'),
        "tools twice": TEXT.replace('"tools"', '"tools":[],"tools"'),
        "tools twice, empty last": TEXT.replace('}, "id"', ',"tools":[]}, "id"'),
        "tools with NUL": TEXT.replace('"tools"', '"tools\\u0000"'),
        "result twice": TEXT.replace('{"result"', '{"result":{},"result"'),
        "Result": TEXT.replace('"result"', '"Result"'),
        "result as list": f'{{"jsonrpc":"2.0","id":1,"result":[{DEFINITION}]}}',
        "result as text": f'{{"jsonrpc":"2.0","id":1,"result":{json.dumps(DEFINITION)}}}',
        "tools as map": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":{{"{DENIED}":{DEFINITION}}}}}}}',
        "tools as map without names": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":{{"{DENIED}":{{"inputSchema":{{}},"description":"{MARK}"}}}}}}}}',
        "tools as text": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":{json.dumps("[" + DEFINITION + "]")}}}}}',
        "nested lists": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[[{DEFINITION}]]}}}}',
        "array instead of tool": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[["{DENIED}","{MARK}"]]}}}}',
        "text instead of tool": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":["{DENIED}","{MARK}"]}}}}',
        "name twice": TEXT.replace(f'"name":"{DENIED}"', f'"name":"read_file","name":"{DENIED}"'),
        "name twice, allowed last": TEXT.replace(
            f'"name":"{DENIED}"', f'"name":"{DENIED}","name":"read_file"'
        ),
        "Name": TEXT.replace(f'"name":"{DENIED}"', f'"Name":"{DENIED}"'),
        "name and Name": TEXT.replace(
            f'"name":"{DENIED}"', f'"name":"read_file","Name":"{DENIED}"'
        ),
        "name as list": TEXT.replace(f'"{DENIED}"', f'["{DENIED}"]'),
        "no name": TEXT.replace(f'"name":"{DENIED}",', "").replace(
            f'"name":"{DENIED}"', '"title":"x"'
        ),
        "no schema": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"name":"{DENIED}","description":"{MARK}"}}]}}}}',
        "schema as text": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"name":"{DENIED}","description":"{MARK}","inputSchema":"{{}}"}}]}}}}',
        "snake schema": TEXT.replace("inputSchema", "input_schema"),
        "under _meta": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[],"_meta":{{"all":[{DEFINITION}]}}}}}}',
        "under _meta of a tool's result": f'{{"jsonrpc":"2.0","id":1,"result":{{"content":[],"_meta":{{"all":[{DEFINITION}]}}}}}}',
        "under _meta of an allowed tool": TEXT.replace(
            DENIED_TOOL.decode(),
            ALLOWED_TOOL.decode()[:-1] + f',"_meta":{{"sibling":{DEFINITION}}}}}',
        ),
        "under data": f'{{"jsonrpc":"2.0","id":1,"result":{{"data":{{"tools":[{DEFINITION}]}}}}}}',
        "single tool": f'{{"jsonrpc":"2.0","id":1,"result":{{"tool":{DEFINITION}}}}}',
        "the tool itself": f'{{"jsonrpc":"2.0","id":1,"result":{DEFINITION}}}',
        "error data": f'{{"jsonrpc":"2.0","id":1,"error":{{"code":1,"message":"x","data":{params}}}}}',
        "error data, one tool": f'{{"jsonrpc":"2.0","id":1,"error":{{"code":1,"message":"x","data":{DEFINITION}}}}}',
        "error beside": TEXT[:-1] + ',"error":{"code":1,"message":""}}',
        "a notification": f'{{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{params}}}',
        "a message notification": f'{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":{params}}}}}',
        "a vendor notification": f'{{"jsonrpc":"2.0","method":"notifications/x","params":{{"x":{DEFINITION}}}}}',
        "a request": f'{{"jsonrpc":"2.0","id":"s","method":"tools/list","params":{params}}}',
        "an elicitation": f'{{"jsonrpc":"2.0","id":"s","method":"elicitation/create","params":{{"message":"","tools":[{DEFINITION}]}}}}',
        "a capability": f'{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{"{DENIED}":{DEFINITION}}}}},"serverInfo":{{}}}}}}',
        "a task's result": f'{{"jsonrpc":"2.0","id":1,"result":{{"task":{{"result":{params}}}}}}}',
        "extra member": f'{{"jsonrpc":"2.0","id":1,"result":{{}},"tools":[{DEFINITION}]}}',
        "extra object": f'{{"jsonrpc":"2.0","id":1,"result":{{}},"x":{DEFINITION}}}',
        "batch": f"[{TEXT}]",
        "batch behind another": f"[{RESULT.decode()},{TEXT}]",
        "batch in batch": f"[[{TEXT}]]",
        "batch with a number": f"[1,{TEXT}]",
        "bare result": params,
        "bare list": f"[{DEFINITION}]",
        "bare tool": DEFINITION,
        "a map of tools": f'{{"{DENIED}":{DEFINITION}}}',
        "OpenAPI": f'{{"openapi":"3.1.0","paths":{{"/{DENIED}":{{"post":{{"summary":"{MARK}","x":{DEFINITION}}}}}}}}}',
        "OpenAI": f'{{"jsonrpc":"2.0","id":1,"result":{{"tools":[{{"type":"function","function":{DEFINITION}}}]}}}}',
        "wrapped": f'{{"message":{TEXT}}}',
        "no version": TEXT.replace(',"jsonrpc":"2.0"', ""),
        "version 1.0": TEXT.replace("2.0", "1.0"),
        "two documents": RESULT.decode() + TEXT,
        "two lines": RESULT.decode() + "\n" + TEXT + "\n",
        "a list behind a list": tool_list([ALLOWED_TOOL]).decode() + TEXT,
        "trailing comma": TEXT[:-1] + ",}",
        "comment": "/**/" + TEXT,
        "NaN": TEXT.replace("1e2", "NaN"),
        "NUL behind": TEXT + "\0",
        "BOM": "\ufeff" + TEXT,
        "anti-hijacking prefix": ")]}',\n" + TEXT,
        "while(1)": "while(1);" + TEXT,
        "JSONP": f"callback({TEXT})",
        "deep": TEXT.replace("1e2", "[" * 129 + "]" * 129),
        "very deep": TEXT.replace("1e2", "[" * 60000 + "]" * 60000),
        "cut short": TEXT[:-20],
        "cut behind the name": TEXT[: TEXT.index(MARK) + 20],
        "only the end": TEXT[60:],
        "as an event": f"data: {TEXT}\n\n",
        "HTML": f"<html><body><script>var x = {TEXT}</script></body></html>",
        "HTML, escaped": f"<pre>{TEXT.replace(chr(34), '&quot;')}</pre>",
        "XML": f"<tools><tool><name>{DENIED}</name><description>{MARK}</description><inputSchema/></tool></tools>",
        "YAML": f"tools:\n- name: {DENIED}\n  description: {MARK}\n  inputSchema:\n    type: object\n",
        "name with half a surrogate": TEXT.replace(f'"{DENIED}"', f'"{DENIED}\\ud800"'),
        "huge integer": TEXT.replace("1e2", "9" * 5000),
        "over the limit": TEXT.replace("1e2", '"' + "x" * (10 << 20) + '"'),
        "way over the limit": TEXT.replace("1e2", '"' + "x" * (21 << 20) + '"'),
    }.items()


def in_messages() -> Iterator[Attack]:
    for label, text in messages():
        body = text.encode("utf-8", "surrogatepass")
        small = len(body) < 1000
        yield Attack(f"{label} to tools/list", (answer(body),))
        if not small:
            yield Attack(f"{label} in a stream", (SSE + b"\r\n" + event(body),), ends=True)
            continue
        if "instead of" not in label:  # a list of mere names may be anything
            yield Attack(f"{label} to resources/list", (answer(body),), ASKED["resources/list"])
            yield Attack(f"{label} to a call", (answer(body),), ASKED["a call"])
        yield Attack(f"{label} to GET", (answer(body),), ASKED["GET elsewhere"])
        yield Attack(f"{label} with 500", (answer(body, status="500 X"),))
        yield Attack(
            f"{label} with 404 as text", (answer(body, status="404 X", kind="text/plain"),)
        )
        yield Attack(f"{label} as HTML to GET", (answer(body, kind="text/html"),), ASKED["GET"])
        data = b"\ndata: ".join(body.splitlines())
        yield Attack(f"{label} in a stream", (stream(event(data)),))
        yield Attack(f"{label} in a GET stream", (stream(event(data)),), ASKED["GET"])
        yield Attack(
            f"{label} in a named event", (stream(event(data, b"event: x\n")),), ASKED["GET"]
        )
