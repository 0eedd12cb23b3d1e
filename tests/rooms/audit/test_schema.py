"""The schema of the audit log is what the type of a line says."""

from __future__ import annotations

import json

from mcp_tool_filter.rooms.audit.entries import AuditLine
from mcp_tool_filter.rooms.audit.schema import FILE, json_schema, render


def test_the_file_is_what_the_type_says() -> None:
    """If not: python -m mcp_tool_filter.rooms.audit.schema."""
    assert FILE.read_text("utf-8") == render()


def test_every_member_of_a_line_is_in_it() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert list(schema["properties"]) == list(AuditLine.__annotations__)
    assert schema["required"] == ["v", "time", "prev"]
    assert schema["properties"]["event"]["enum"] == ["dropped", "torn", "rule"]
    assert schema["properties"]["shadow"]["const"] is True
    assert schema["properties"]["session"]["type"] == ["string", "null"]
    assert schema["properties"]["arguments"]["$ref"] == "#/$defs/content"
    assert schema["$defs"]["content"]["required"] == ["bytes"]
