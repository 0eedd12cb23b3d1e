"""A proxy with the policy that the attacks on rules try to get past."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.adapters.mitmproxy.filtered import Filtered, call, filtered

POLICY = """
interceptor:
  rules:
    - id: no-etc
      conditions:
        - method_equals: tools/call
        - param_matches: {field: arguments.path, pattern: ^/etc}
      actions: [block: "no"]
    - id: only-drafts
      conditions:
        - tool_equals: read_file
        - not: {param_in: {field: arguments.kind, values: [draft]}}
      actions: [block: "no"]
    - id: rename
      conditions: [param_exists: arguments.to]
      actions: [set_param: {field: name, value: "${params.arguments.to}"}]
    - id: budget
      conditions: [method_equals: vendor/costly]
      actions: [rate_limit: {key: "${session_id}", limit: 1, window: 1h}]
    - id: mask
      on: response
      conditions: [method_in: [tools/call, vendor/get]]
      actions: [redact: {pattern: "sk-[a-z]+"}]
    - id: checked
      on: response
      conditions: [method_equals: vendor/get, result_equals: {field: isSecret, value: true}]
      actions: [block: secret]
    - id: cache
      conditions: [method_equals: vendor/get]
      actions: [cache: {key: all, ttl: 1h}]
  method_interceptors:
    resources/read:
      class: ResourceAccessInterceptor
      config: {allowed_paths: [/workspace], deny_patterns: ["*.key"]}
"""

OK = b'{"jsonrpc":"2.0","id":1,"result":{}}'


@asynccontextmanager
async def under_policy(home: Path, more: str = "", **options: Any) -> AsyncIterator[Filtered]:
    """Open a proxy with the policy; there may be ``more`` rules, before the others."""
    path = home / "rules.yaml"
    path.write_text(POLICY.replace("  rules:", f"  rules:{more}", 1))
    async with filtered(home, rules=[str(path)], **options) as between:
        yield between


def draft(arguments: str) -> bytes:
    return call("read_file", f'{{"kind":"draft",{arguments}}}')
