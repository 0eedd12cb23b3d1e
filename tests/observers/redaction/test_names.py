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


SECRET_HEADERS = [
    "mcp-session-id", "x-session", "ocp-apim-subscription-key", "x-hub-signature-256",
    "cf-access-jwt-assertion", "x-auth-request-email",
]  # fmt: skip
ORDINARY_HEADERS = [
    "www-authenticate", "access-control-allow-credentials", "sec-websocket-key", "sec-fetch-site",
    "idempotency-key", "mcp-protocol-version", "mcp-name", "accept", "x-authored-by", "etag",
]  # fmt: skip


@pytest.mark.parametrize("name", [*SECRET_HEADERS, *ORDINARY_HEADERS])
def test_secret_headers_are_recognised(name: str) -> None:
    assert is_secret_header(name) == (name in SECRET_HEADERS)
