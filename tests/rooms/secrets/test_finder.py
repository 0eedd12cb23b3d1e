"""What is taken for a secret, what is not, and how long that takes."""

from __future__ import annotations

import base64
import gzip
import json
from time import process_time

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from mcp_tool_filter.rooms.secrets.finder import (
    LOOK_AHEAD,
    MASK,
    SecretFinder,
    redact,
    redacted_beginning,
)
from mcp_tool_filter.rooms.secrets.places import replace
from tests.rows import each_row

SECRETS = [
    ('{"a": {"Client-Secret": "s3"}}', "s3"),
    (r'{"text": "{\"api_key\": \"a\\u0062c\"}"}', r"a\\u0062c"),
    ('["a", {"password": ["one", "two"]}]', "two"),
    ('{"token": {"value": "hidden"}}', "hidden"),
    ('{"env": [{"name": "API_KEY", "value": "v-1"}]}', "v-1"),
    ('{"a":1}\n{"password":"second line"}', "second line"),
    ("data: {\"password\":\ndata: \"p-1\"}\n\n", "p-1"),
    ("prose {not json} and {\"password\": \"p-1\"}", "p-1"),
    ("{'password': 'p-1'}", "p-1"), ("password=p-1&user=bob", "p-1"),
    ("user%5Bpassword%5D=p-1", "p-1"), ("see https://bob:p-1@host/", "p-1"),
    ("see https://ghp-like-token@host/", "ghp-like-token"),
    ("see /callback?code=SplxlOBeZQ&state=1", "SplxlOBeZQ"),
    ("AccountKey=abcDEF123==;EndpointSuffix=x", "abcDEF123=="),
    ("Authorization: Bearer abc123def456", "abc123def456"),
    ("curl -H 'Cookie: sid=abcdef; x=1' http://h", "abcdef"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n", "MIIabc"),
    ("{" * 300 + '"password":"p-1"', "p-1"),
    ('{"a":' * 5000 + '{"password":"p-1"}' + "}" * 5000, "p-1"),
    ("<db:password hint='x'>p-1</db:password>", "p-1"),
    ('<input type="hidden" name="csrf_token" value="p-1">', "p-1"),
    ("The API key is Zq7Hidden9Secret.", "Zq7Hidden9Secret"),
    ('{"connectionString": "Server=a"}', "Server=a"),
    ('{"tokens": {"access": "a-1"}}', "a-1"),
    ('{"code": "Zq7Hidden9Secret12", "state": "x"}', "Zq7Hidden9Secret12"),
    ('{"sessionId": "5f1c9f3e8e0b4d0aa7"}', "5f1c9f3e8e0b4d0aa7"),
    ("//bob:p-1@host/", "p-1"),
    ("ZGF0YToge1wicGFzc3dvcmRcIjogcGFzc3dvcmQ9cGFzc3dvcmQtMX0=", "ZGF0YToge1wi"),
]  # fmt: skip

ORDINARY = [
    '{"properties":{"password":{"type":"string","description":"A word"}},"required":["token"]}',
    '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Tool not found: token_count"}}',
    '{"params":{"_meta":{"progressToken":"abc-123456"},"cursor":"bmV4dA=="}}',
    '{"nextPageToken":"CAUQAA12345","max_tokens":4096,"token_type":"Bearer","tokens":17}',
    '{"token_endpoint":"https://as/token","grant_types_supported":["refresh_token"]}',
    '{"name":"run","arguments":{"code":"print(1234567)","language":"python"}}',
    '{"code":"E1234567","key":"value-123456","path":"/secrets/readme-1234567890.md"}',
    "The task-1234567890123456 uses sk-learn-without-any-digits-in-its-name.",
    "Enter your password: then press return. Basic authentication is off.",
    "def login(password: str, token: Optional[str] = None): token = get_token(1)",
    "self.connect(password=password, token=self.token)",
    "commit 0123456789abcdef0123456789abcdef01234567 by git@github.com",
    "git clone ssh://git@github.com/a/b.git",
    "Bearer tokens are described at https://example.com/?page=12#tokens",
    "api_key=${API_KEY} secret=$SECRET password={{password}} token=<token>",
    '{"sessionId": "main-window-2", "session": "the one of Monday, 2026"}',
    '{"name": "Enter the password", "value": "field-12345"}',
    '{"country": {"code": "DE-1234", "state": "Hessen"}}',
    "//todo@alice: the token 20260102-030405 and the tokens 17; <tokens>a word</tokens>",
    "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
    "The bearer realm is described below; the secretary said: nothing.",
    "1, 2, 3 -----BEGIN CERTIFICATE-----\nMIIabc\n-----END CERTIFICATE-----",
    "monkey=banana12345&page=2&sort=key",
]


def test_a_text_is_cut_after_secrets_are_found() -> None:
    """Half of a token does not look like one."""
    secret = "ghp_0123456789abcdefABCD0123"
    for place in range(60, 102):
        text = f"{'a ' * (place // 2)}{secret}{' z' * LOOK_AHEAD}"
        assert redacted_beginning(text, len(text)) == text.replace(secret, MASK)
        cut = redacted_beginning(text[: 100 + LOOK_AHEAD], 100)
        assert "ghp" not in cut
        assert cut.endswith("…")
        assert len(cut) <= 101


@each_row(("text", "secret"), SECRETS)
def test_a_secret_is_found(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in redact(text)


@each_row("text", ORDINARY)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


@each_row(("name", "value", "clean"), [
    ("WWW-Authenticate", 'Bearer resource_metadata="https://h/.well-known/x", error="e1"', None),
    ("Authorization", "Bearer abc", "Bearer [secret]"),
    ("authorization", "abc def", "[secret]"), ("X-Custom-Jwt", "abc", "[secret]"),
    ("Xauthtoken", "abc", "[secret]"),
    ("Set-Cookie", "a=b; Path=/; Max-Age=1", "a=[secret]; Path=/; Max-Age=1"),
    ("Cookie", "a=b; nameless; =c; my sid=d", "a=[secret]; [secret]; [secret]; [secret]"),
    ("Set-Cookie", "nameless; Path=/; Secure; HttpOnly", "[secret]; Path=/; Secure; HttpOnly"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==", None),
    ("Access-Control-Allow-Credentials", "true", None),
    ("Idempotency-Key", "abc123456", None), ("Mcp-Session-Id", "abc", "[secret]"),
    ("Mcp-Name", "read_token_1234567", None),
    ("Content-Type", "multipart/form-data; boundary=abc1234567890", None),
])  # fmt: skip
def test_headers_are_read_by_their_names(name: str, value: str, clean: str | None) -> None:
    found = SecretFinder().in_header(name, value)
    assert replace(value, found.secrets, lambda _: MASK) == (value if clean is None else clean)


@each_row(("body", "content_type", "problem"), [
    (b"\x89PNG\r\n\x1a\n\0\0", "image/png", "binary data"),
    (b"\xff\xfea\0b\0", "text/plain", "binary data"),
    (b"\xe9t\xe9", "text/plain; charset=iso-8859-1", None),
    (b"abc", "text/plain; charset=utf-7", "text in the charset utf-7"),
    (b"abc", "multipart/form-data; boundary=x", "multipart without its boundary"),
    (b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n\0\1\r\n--x--',
     "multipart/form-data; boundary=x", "binary data"),
    (json.dumps({"blob": "gIGCg4SF" * 60}).encode(), "application/json", "binary data in base64"),
    ("é".encode(), "", None),
])  # fmt: skip
def test_unreadable_parts_are_named(body: bytes, content_type: str, problem: str | None) -> None:
    assert SecretFinder().in_body(body, content_type).unread == ([problem] if problem else [])


@pytest.mark.parametrize("piece", [
    "eyJ", "eyJhbGciOi.", "sk-", "ghp_", "xox", "Bearer ", "://", "://a@", "?a=", "&code=", "{",
    "[", '{"', '"a":', '{"a":[', "password=", 'password="', "password: ", "\\", '\\"', "a", "a.",
    "--a ", "-----BEGIN PRIVATE KEY-----", "data:", "data: {\n\n", "a=b&", "%7B", "%22%3A", "+",
    "<token>", "<token a", 'name="token" ', "token is ", "//a:", "boundary", "--x\r\n\r\n",
    "cookie: ", "\n", " ", "é", "1//", "1",
])  # fmt: skip
def test_the_time_grows_linearly_with_the_length(piece: str) -> None:
    def seconds(size: int) -> float:
        body = (piece * (size // len(piece))).encode()
        least = 1e9
        for _ in range(3):
            start = process_time()
            SecretFinder().in_body(body, "")
            SecretFinder().in_body(body, "multipart/x; boundary=x")
            least = min(least, process_time() - start)
        return least

    small = max(seconds(20_000), 0.002)
    assert seconds(80_000) < 9 * small


def _keys() -> list[bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    forms = (PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL)
    return [key.private_bytes(Encoding.DER, form, NoEncryption()) for form in forms]


@pytest.mark.parametrize("hidden", [
    gzip.compress(b'{"password":"hunter2"}'),
    '$env:TOKEN = "ghp_0123456789abcdefABCD"'.encode("utf-16-le"),
    b"\x00\xff\x00" + b"ghp_0123456789abcdefABCD" + b"\x00\xff",
    *_keys(),
])  # fmt: skip
def test_secrets_within_binary_data_in_base64_are_found(hidden: bytes) -> None:
    text = base64.b64encode(hidden).decode()
    assert redact(json.dumps({"x": text})) == '{"x": "[secret]"}'


def test_binary_data_in_base64_that_cannot_be_read_is_reported() -> None:
    text = base64.b64encode(bytes(range(128, 256))).decode()
    assert SecretFinder().in_text(json.dumps({"x": text})).unread == ["binary data in base64"]
