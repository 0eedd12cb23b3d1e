"""Names that hold secrets, in every spelling, and names that only look like it."""

from __future__ import annotations

import pytest

from mcp_tool_filter.observers.redaction.names import (
    is_secret_header,
    is_secret_name,
    is_secret_parameter,
)

SECRET = [
    "api_key", "apiKey", "API-KEY", "apikey", "X-Api-Key", "client_secret", "clientSecret",
    "refresh_token", "access_token", "accessToken", "id_token", "idToken", "code_verifier",
    "password", "Password", "passwd", "db_password", "dbpassword", "password_confirmation",
    "passwordHash", "new_password2", "client_assertion", "device_code", "deviceCode",
    "user_code", "X-Custom-Jwt", "jwt", "secret", "secrets", "secretAccessKey", "private_key",
    "GITHUB_TOKEN", "openai_key", "githubPat", "connectionString", "authorization",
    "proxy-authorization", "cookie", "set-cookie", "csrf_token", "subject_token",
    "registration_access_token", "webhookSecret", "secret_id", "credentials", "totp",
    "assertion", "SAMLResponse", "id_token_hint", "storage_key", "codeVerifier", "githubToken",
    "auth_token",
]  # fmt: skip
ORDINARY = [
    "progressToken", "nextPageToken", "page_token", "continuation_token", "max_tokens",
    "tokens", "token_type", "token_endpoint", "token_endpoint_auth_method", "tokenCount",
    "eos_token", "secretary", "secret_name", "password_policy", "passwordless", "key",
    "keyboard", "monkey", "name", "code", "codec", "cursor", "state", "nonce", "path",
    "authorization_endpoint", "code_challenge", "grant_type", "author", "title", "compass",
    "client_id", "client_secret_expires_at", "signature_algorithm", "public_key", "foreign_key",
]  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_name_is_known(name: str) -> None:
    assert is_secret_name(name)
    assert is_secret_parameter(name)
    if name.islower():
        assert is_secret_header(name.replace("_", "-"))


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_name_is_no_secret_name(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("name", ["code", "key", "sid", "session_id", "sig", "X-Amz-Signature"])
def test_some_names_are_secret_in_urls_and_forms_only(name: str) -> None:
    assert is_secret_parameter(name)
    assert name == "X-Amz-Signature" or not is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["state", "page", "q", "redirect_uri", "scope", "zip_code", "sort"]
)
def test_ordinary_parameters_are_not_secret(name: str) -> None:
    assert not is_secret_parameter(name)


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("mcp-session-id", True),
        ("x-session", True),
        ("ocp-apim-subscription-key", True),
        ("x-hub-signature-256", True),
        ("cf-access-jwt-assertion", True),
        ("x-auth-request-email", True),
        ("www-authenticate", False),
        ("access-control-allow-credentials", False),
        ("sec-websocket-key", False),
        ("sec-fetch-site", False),
        ("idempotency-key", False),
        ("mcp-protocol-version", False),
        ("mcp-name", False),
        ("accept", False),
        ("x-authored-by", False),
        ("etag", False),
    ],
)
def test_secret_headers_are_recognised(name: str, is_secret: bool) -> None:
    assert is_secret_header(name) == is_secret
