"""What is a secret by its name, by its shape, or in a command that people see."""

from __future__ import annotations

import shlex

import pytest

from mcp_tool_filter.core.http.shown import may_hold_a_secret, shown_url
from mcp_tool_filter.rooms.secrets.names import (
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
)
from mcp_tool_filter.rooms.secrets.shapes import basic_parts, shapes_in
from mcp_tool_filter.rooms.secrets.shown import secrets_in_words, shown_command
from tests.rows import each_row

SECRET = [
    "api_key", "apiKey", "API-KEY", "apikey", "X-Api-Key", "client_secret", "clientSecret",
    "refresh_token", "access_token", "accessToken", "id_token", "idToken", "code_verifier",
    "password", "Password", "passwd", "db_password", "dbpassword", "password_confirmation",
    "passwordHash", "new_password2", "client_assertion", "device_code", "deviceCode", "user_code",
    "X-Custom-Jwt", "jwt", "secret", "secrets", "secretAccessKey", "private_key", "GITHUB_TOKEN",
    "openai_key", "githubPat", "connectionString", "authorization", "proxy-authorization", "cookie",
    "set-cookie", "csrf_token", "subject_token", "registration_access_token", "webhookSecret",
    "secret_id", "credentials", "totp", "assertion", "SAMLResponse", "id_token_hint", "storage_key",
    "codeVerifier", "githubToken", "auth_token",
]  # fmt: skip
ORDINARY = [
    "progressToken", "nextPageToken", "page_token", "continuation_token", "max_tokens",
    "tokens", "token_type", "token_endpoint", "token_endpoint_auth_method", "tokenCount",
    "eos_token", "secretary", "secret_name", "password_policy", "passwordless", "key",
    "keyboard", "monkey", "name", "code", "codec", "cursor", "state", "nonce", "path",
    "authorization_endpoint", "code_challenge", "grant_type", "author", "title", "compass",
    "client_id", "client_secret_expires_at", "signature_algorithm", "public_key", "foreign_key",
]  # fmt: skip


@each_row("name", SECRET)
def test_a_secret_name_is_known(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret_parameter(name)
    if name.islower():
        assert is_secret_header(name.replace("_", "-"))


@each_row("name", ORDINARY)
def test_an_ordinary_name_is_no_secret_name(name: str) -> None:
    assert not is_secret_name(name)


@each_row("name", ["code", "key", "sid", "session_id", "sig", "X-Amz-Signature"])
def test_some_names_are_secret_in_urls_and_forms_only(name: str) -> None:
    assert is_secret_parameter(name)
    assert name == "X-Amz-Signature" or not is_secret_name(name)


@each_row("name", ["state", "page", "q", "redirect_uri", "scope", "zip_code", "sort"])
def test_ordinary_parameters_are_not_secret(name: str) -> None:
    assert not is_secret_parameter(name)


SECRET_HEADERS = [
    "mcp-session-id", "x-session", "ocp-apim-subscription-key", "x-hub-signature-256",
    "cf-access-jwt-assertion", "x-auth-request-email",
]  # fmt: skip
ORDINARY_HEADERS = [
    "www-authenticate", "access-control-allow-credentials", "sec-websocket-key", "sec-fetch-site",
    "idempotency-key", "mcp-protocol-version", "mcp-name", "accept", "x-authored-by", "etag",
]  # fmt: skip


@each_row("name", [*SECRET_HEADERS, *ORDINARY_HEADERS])
def test_secret_headers_are_recognised(name: str) -> None:
    assert is_secret_header(name) == (name in SECRET_HEADERS)


# Secrets that are known by what they look like


@each_row(("text", "secret"), [
    ("a glpat-0123456789abcdefXYZ b", "glpat-0123456789abcdefXYZ"),
    ("AKIAABCDEFGHIJKLMNOP.", "AKIAABCDEFGHIJKLMNOP"),
    ("Bearer abc123def", "abc123def"),
    ("basic Ym9iOmh1bnRlcjI=", "Ym9iOmh1bnRlcjI="),
    ("https://hooks.slack.com/services/T0/B0/abcdefghij", "T0/B0/abcdefghij"),
    ("-----BEGIN PRIVATE KEY-----\nMIIabc", "MIIabc"),
])  # fmt: skip
def test_a_secret_shape_is_found_without_a_name(text: str, secret: str) -> None:
    assert secret in [text[start:end] for start, end in shapes_in(text)]


@pytest.mark.parametrize(
    "text", ["sk-learn-is-a-library", "Bearer tokens", "basic English", "AKIA"]
)
def test_ordinary_words_have_no_secret_shape(text: str) -> None:
    assert list(shapes_in(text)) == []


def test_only_basic_credentials_have_a_user() -> None:
    assert basic_parts("!!") == basic_parts("Ym9i") == []


HEX = "0123456789abcdef"


@each_row("around", ["use %s now", '{"x":"%s"}', "a=%s&b", "https://h/%s"])
@each_row("secret", [
    f"SK{HEX * 2}", "dckr_pat_AbCdEf0123456789abcdefGHIJK", f"PMAK-{HEX}{HEX[:8]}-{HEX * 2}ab",
    "glsa_AbCdEf0123456789AbCdEf0123456789_1a2b3c4d",
    f"pul-{HEX * 2}{HEX[:8]}", "NRAK-ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "sq0atp-AbCdEf0123456789abcdef",
    f"key-{HEX * 2}", "re_AbCd1234_AbCdEf0123456789abcdefGH", f"{HEX * 2}-us12",
    "nfp_AbCdEf0123456789abcdefGHIJK", "abcdefghij1234.atlasv1." + "x1" * 33,
    "acme_live_4f9aKd83hfkQ02mZp1", "foo-pat-a8S7d6f5g4h3j2k1l0", "bar_api_key_a8S7d6f5g4h3j2k1l0",
])  # fmt: skip
def test_makers_say_in_a_prefix_that_a_text_is_a_secret(secret: str, around: str) -> None:
    text = around.replace("%s", secret)
    assert secret in [text[start:end] for start, end in shapes_in(text)]


@each_row("text", [
    "toolu_01A09q90qw90lq917835lq9", "chatcmpl-9aBc1234567890abcdef", "api-reference-version-2",
    "0f8fad5b-d9cb-469f-a165-70867728950e", "mcp-server-key-value-store", "live_2026_11_18_logs",
    "machine h login bob", "curl -u http://localhost", "oauth-2025-06-18",
])  # fmt: skip
def test_ids_and_names_have_no_secret_shape(text: str) -> None:
    assert list(shapes_in(text)) == []


def test_passwords_of_other_programs_are_found() -> None:
    text = "machine h login bob password two-words\ncurl -u bob:hunter x"
    assert [text[start:end] for start, end in shapes_in(text)] == ["two-words", "hunter"]


# Commands and URLs as people see them: no secret is left, and the rest stays readable


@each_row(("command", "shown"), [
    ("npx -y @scope/server-filesystem /home/bob/project", None),
    ("uvx mcp-server-fetch@2025.4.7 --port 3000", None),
    ("python3 /tmp/pytest-of-root/pytest-1/test_x0/server.py", None),
    ("node --token-file /run/token --verbose", None),
    ("npx mcp-remote https://mcp.example/sse", None),
    ("x --access-token X -y", "x --access-token *** -y"),
    ("x --password=X", "x --password=***"), ("x --secret --verbose", None),
    ("x --api-keys a,b", "x --api-keys ***"), ("mysql -u bob:pw", "mysql -u bob:***"),
    ("docker run -e API_KEY=k -e DEBUG=1 image", "docker run -e API_KEY=*** -e DEBUG=1 image"),
    ("curl -H 'Authorization: Bearer b'", "curl -H 'Authorization: ***'"),
    ("curl --header=X-Api-Key:k", "curl --header=X-Api-Key:***"),
    ("redis://:pw@h:6379/0", "redis://***@h:6379/0"),
    ("x postgresql://h/db?password=b", "x 'postgresql://h/db?password=***'"),
    ("sh -c 'run --token abc; open https://a:b@c/d'", "sh -c 'run --token *** open https://***@c/d'"),
    ("x ghp_0123456789abcdefABCD", "x ***"), ("x Zk3v9QpX7dRt5WmN2bLc", "x ***"),
    ("x '{\"apiKey\":\"k\"}'", "x '{\"apiKey\":\"***\"}'"),
])  # fmt: skip
def test_a_command(command: str, shown: str | None) -> None:
    words = shlex.split(command)
    assert shown_command(words) == (shown or shlex.join(words))
    assert shown_command(words).count("***") >= len(list(secrets_in_words(words)))


@each_row(("url", "shown"), [
    ("http://[::1]:3000/mcp/2024-11-05", None),
    ("https://mcp.example/modelcontextprotocol/sse", None),
    ("https://mcp.example/s/Zk3v9QpX7d/mcp", "https://mcp.example/s/…/mcp"),
    ("https://bob:pw@mcp.example?a=b&c", "https://…@mcp.example?a=…&…"),
    ("/mcp?s3cret", "/mcp?…"), ("/mcp#s3cret", "/mcp#…"),
])  # fmt: skip
def test_a_url(url: str, shown: str | None) -> None:
    assert shown_url(url) == (shown or url)
    assert may_hold_a_secret(url) == (shown is not None)
