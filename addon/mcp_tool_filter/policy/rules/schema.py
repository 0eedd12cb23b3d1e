"""The JSON schema of rules files, for editors. ``load`` checks what a schema cannot express."""

from __future__ import annotations

from mcp_tool_filter.policy.rules.actions import LEVELS
from mcp_tool_filter.policy.rules.conditions import MOST_LEVELS
from mcp_tool_filter.policy.rules.edits import OPERATIONS
from mcp_tool_filter.policy.rules.interceptors import PERIODS

type Schema = dict[str, object]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_BOOLEAN: Schema = {"type": "boolean"}
_TEXTS: Schema = {"type": "array", "items": _TEXT, "minItems": 1}
_FIELD: Schema = {
    "type": "string",
    "minLength": 1,
    "description": "a path such as arguments.path, content[*].text, or a JSON pointer",
}
_REGEX: Schema = {"type": "string", "description": "a JavaScript regex"}
_DURATION: Schema = {
    "description": "such as 5s, 200ms, 1m, 2h, 1d, or a number of seconds",
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\d+(\.\d+)?\s*(ms|s|m|h|d)?$"},
    ],
}
_ANY: Schema = {}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }
    return {**schema, "required": list(required)} if required else schema


def _whole(least: int, most: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "minimum": least}
    return schema if most is None else {**schema, "maximum": most}


def _one_of(*choices: str) -> Schema:
    return {"enum": list(choices)}


_PATTERN: Schema = {
    "anyOf": [_REGEX, _object({"pattern": _REGEX}, {"ignore_case": _BOOLEAN})],
}
_COMPARED = _object({"field": _FIELD, "value": _ANY})
_MATCHED = _object({"field": _FIELD, "pattern": _PATTERN}, {"ignore_case": _BOOLEAN})
_NUMBERED = _object({"field": _FIELD, "value": _NUMBER})
_SET = _object({"field": _FIELD, "value": _ANY})
_CONDITION: Schema = {"$ref": "#/$defs/condition"}
_CONDITIONS: Schema = {"type": "array", "items": _CONDITION, "minItems": 1}

CONDITIONS: dict[str, Schema] = {
    "method_equals": _TEXT,
    "method_starts_with": _TEXT,
    "method_ends_with": _TEXT,
    "method_matches": _PATTERN,
    "method_in": _TEXTS,
    "tool_equals": _TEXT,
    "tool_in": _TEXTS,
    "tool_matches": _PATTERN,
    "param_exists": _FIELD,
    "param_equals": _COMPARED,
    "param_in": _object({"field": _FIELD, "values": {"type": "array", "minItems": 1}}),
    "param_matches": _MATCHED,
    "param_greater_than": _NUMBERED,
    "param_less_than": _NUMBERED,
    "param_is_null": _FIELD,
    "param_is_array": _FIELD,
    "result_exists": _FIELD,
    "result_equals": _COMPARED,
    "result_matches": _MATCHED,
    "error_code_equals": {"type": "integer"},
    "error_message_contains": _TEXT,
    "session_id_equals": _TEXT,
    "session_age_greater_than": _DURATION,
    "from": _one_of("client", "server"),
    "all": _CONDITIONS,
    "any": _CONDITIONS,
    "not": {**_CONDITION, "description": f"nested at most {MOST_LEVELS} deep"},
}

ACTIONS: dict[str, Schema] = {
    "allow": {"enum": [None, True, {}]},
    "block": _TEXT,
    "inject_error": _object({"code": {"type": "integer"}, "message": _TEXT}, {"data": _ANY}),
    "delay": _DURATION,
    "set_param": _SET,
    "remove_param": _FIELD,
    "set_result": _SET,
    "transform": {
        "oneOf": [
            _object({"merge_patch": {"type": "object"}}),
            _object({
                "json_patch": {
                    "type": "array",
                    "items": _object(
                        {"op": _one_of(*OPERATIONS), "path": _TEXT}, {"from": _TEXT, "value": _ANY}
                    ),
                }
            }),
            _object({"python": {"type": "string", "description": "module:function"}}),
        ]
    },
    "redact": _object(
        {"pattern": _PATTERN}, {"ignore_case": _BOOLEAN, "field": _FIELD, "with": _TEXT}
    ),
    "log": _object({"message": _TEXT}, {"level": _one_of(*LEVELS)}),
    "metric": _object({"name": _TEXT}, {"value": {"type": ["number", "string"]}}),
    "webhook": _object(
        {"url": _TEXT},
        {
            "include_message": _BOOLEAN,
            "headers": {"type": "object", "additionalProperties": _TEXT},
            "timeout": _DURATION,
        },
    ),
    "run_script": _object(
        {"path": _TEXT},
        {"args": {"type": "array", "items": _TEXT}, "timeout": _DURATION, "decides": _BOOLEAN},
    ),
    "fork": _object({}, {"copies": _whole(1, 100), "to": _TEXT}),
    "cache": _object({"key": _TEXT, "ttl": _DURATION}, {"max_entries": _whole(1)}),
    "rate_limit": _object({"key": _TEXT, "limit": _whole(0), "window": _DURATION}),
}  # fmt: skip

_INTERCEPTOR = _object(
    {"class": {"type": "string", "description": "ours, or package.module:Class"}},
    {
        "config": {
            "type": "object",
            "properties": {
                "allowed_tools": {"type": "array", "items": _TEXT},
                "rate_limit": _object({}, dict.fromkeys(PERIODS, _whole(0))),
                "allowed_paths": {"type": "array", "items": _TEXT},
                "deny_patterns": {"type": "array", "items": _TEXT},
            },
        }
    },
)

RULE: Schema = _object(
    {
        "id": {"type": "string", "minLength": 1},
        "actions": {"type": "array", "items": {"$ref": "#/$defs/action"}, "minItems": 1},
    },
    {
        "name": _ANY,
        "enabled": {**_BOOLEAN, "default": True},
        "priority": {"type": "integer", "default": 0},
        "on": _one_of("request", "response", "any"),
        "conditions": {"type": "array", "items": _CONDITION},
        "metadata": _ANY,
    },
)

CHAIN: Schema = _object(
    {},
    {
        "fail_fast": {**_BOOLEAN, "default": True},
        "parallel": {**_BOOLEAN, "default": False},
        "timeout": _DURATION,
        "default_action": _one_of("allow", "block"),
        "on_error": _one_of("block", "allow"),
    },
)
STATE: Schema = _object({}, {"url": _TEXT, "prefix": _TEXT, "session_ttl": _DURATION})

INTERCEPTOR: Schema = _object(
    {},
    {
        "enabled": {**_BOOLEAN, "default": True},
        "mode": _one_of("mcp", "transport"),
        "chain": CHAIN,
        "rules": {"type": "array", "items": RULE},
        "method_interceptors": {"type": "object", "additionalProperties": _INTERCEPTOR},
        "state": STATE,
        "session_ttl": _DURATION,
    },
)


def json_schema() -> Schema:
    """Return the complete schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rules of mcp-tool-filter",
        **_object({"interceptor": INTERCEPTOR}),
        "$defs": {
            "condition": {"oneOf": [_object({name: of}) for name, of in CONDITIONS.items()]},
            "action": {
                "oneOf": [
                    {"const": "allow"},
                    *(_object({name: of}) for name, of in ACTIONS.items()),
                ]
            },
        },
    }
