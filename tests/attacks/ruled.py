"""A proxy with the policy that the attacks on rules try to get past."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.filtered import Filtered, call, filtered

POLICY = (Path(__file__).parent / "corpora" / "policy.yaml").read_text()

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
