"""Know the names of secrets: JSON members, form fields, parameters, headers and parts.

A name is compared by its words, so that every spelling counts:

>>> [is_secret_name(name) for name in ("client_secret", "accessToken", "X-Custom-Jwt", "APIKEY")]
[True, True, True, True]

Names that only contain such a word are ordinary:

>>> [is_secret_name(name) for name in ("progressToken", "max_tokens", "token_type", "secretary")]
[False, False, False, False]
"""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_SECRETS = frozenset({
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token", "jwt",
    "apikey", "credential", "credentials", "authorization", "cookie", "cookies", "bearer", "otp",
    "totp", "cvv", "cvc", "assertion", "accesskey", "secretkey", "privatekey", "accesstoken",
    "refreshtoken", "idtoken", "authtoken", "clientsecret", "devicecode", "usercode",
    "codeverifier", "authkey", "sessionkey", "sessiontoken", "csrftoken", "xsrftoken", "xoauth",
    "samlresponse", "mnemonic", "dpop", "clientassertion", "authcode", "pass", "pw", "pat", "psk",
    "creds", "connectionstring", "encryptionkey", "signingkey", "masterkey",
})  # fmt: skip
"""Words that name a secret when a name ends with them."""

_PAIRS = frozenset({
    "device code", "user code", "code verifier", "auth code", "authorization code", "mfa code",
    "otp code", "recovery code", "backup code", "verification code", "connection string",
    "api key", "access key", "secret key", "private key", "signing key", "encryption key",
    "shared key", "account key", "master key", "service key", "subscription key", "auth key",
    "functions key", "ssh key", "storage key", "admin key", "deploy key", "session key",
    "webhook url", "seed phrase", "pass word", "saml response", "secret id", "token hint",
    "amz signature", "amz credential", "hub signature", "openai key", "anthropic key",
    "azure key", "google key", "gemini key", "aws key", "github key", "stripe key", "slack key",
    "github pat", "gitlab pat", "ado pat", "azure pat", "key data", "client key", "tls key",
    "server key", "rsa key", "ssl key", "pgp key", "gpg key", "license key", "licence key",
    "webhook key", "consumer key", "app key", "application key", "fernet key", "cipher key",
    "aes key", "hmac key", "jwt key", "crypto key", "root key", "recovery key", "backup key",
    "mapbox key", "twilio key", "sendgrid key", "datadog key", "pairing code", "pin code",
})  # fmt: skip
"""Two words that name a secret when a name ends with them."""

_AFTER = frozenset({
    "hash", "value", "confirmation", "confirm", "plain", "plaintext", "text", "raw", "old", "new",
    "b64", "base64", "encoded", "encrypted", "string", "header", "repeat", "again", "current",
})  # fmt: skip
"""Words that may follow the secret's name: a ``password_hash`` is a secret too."""

_NOT_TOKENS = frozenset({
    "progress", "page", "next", "previous", "prev", "continuation", "continue", "sync", "cursor",
    "stop", "pad", "eos", "bos", "unk", "mask", "special", "last", "first", "end", "start", "sep",
    "cls", "resume", "per", "cancellation", "cancel", "abort", "work", "partial",
})  # fmt: skip
"""Words before "token" that mean a place in a list or a piece of text, not a credential."""

_OWNERS = frozenset({
    "access", "refresh", "id", "api", "auth", "bearer", "session", "bot", "user", "app", "client",
    "device", "personal", "deploy", "push", "reset", "invite", "csrf", "xsrf", "identity", "oauth",
})  # fmt: skip
"""Words before "tokens" that mean credentials; most others count pieces of text."""

_ENDINGS = (
    "password", "passwd", "apikey", "secretkey", "accesskey", "privatekey", "accesstoken",
    "authtoken", "refreshtoken", "idtoken", "sessiontoken", "apitoken", "bearertoken",
    "clientsecret", "token", "secret", "passphrase", "encryptionkey", "signingkey",
)  # fmt: skip
"""Ends of a name written as one word: ``dbpassword``."""

_SESSIONS = frozenset({"session", "sid", "sessionid", "sessid", "phpsessid", "jsessionid"})
_PARAMETERS = _SESSIONS | {"code", "key", "auth", "sig", "signature", "ticket", "otp"}
_HEADERS = _SESSIONS | {"key", "auth", "signature", "sig", "password", "authentication"}
_NOT_SECRET_HEADERS = frozenset({
    "www-authenticate", "proxy-authenticate", "authentication-info", "authority", ":authority",
    "proxy-authentication-info", "sec-websocket-key", "idempotency-key", "x-idempotency-key",
    "surrogate-key", "cache-key", "x-cache-key", "signature-input", "signature-agent",
    "access-control-allow-credentials",
})  # fmt: skip


@lru_cache(maxsize=4096)  # the same few names come again and again
def is_secret_name(name: str) -> bool:
    """Tell whether the value of this name is a secret everywhere."""
    words = words_in(name)
    if " ".join(words[-2:]) in _PAIRS:
        return True
    while len(words) > 1 and (words[-1] in _AFTER or words[-1].isdigit()):
        words.pop()
    if not words:
        return False
    words[-1] = _singular(words)
    pair = " ".join(words[-2:])
    if pair in _PAIRS or "".join(words[-2:]) in _SECRETS or "".join(words) in _SECRETS:
        return True
    if len(words) == 1:
        word = words[0]
        is_place = word.endswith("token") and word.removesuffix("token") in _NOT_TOKENS
        return word in _SECRETS or (word.endswith(_ENDINGS) and not is_place)
    if words[-1] not in _SECRETS:
        return False
    if words[-1] == "token":
        return not _NOT_TOKENS.intersection(words[:-1])
    return True


def _singular(words: list[str]) -> str:
    """Return the last word of a name in the singular, unless it is about a number of tokens.

    >>> [is_secret_name(name) for name in ("old_passwords", "refreshTokens", "maxTokens")]
    [True, True, False]
    """
    last = words[-1]
    if (
        last.endswith("tokens")
        and (words[-2:-1] or [last.removesuffix("tokens")])[0] not in _OWNERS
    ):
        return last
    return last[:-1] if last.endswith("s") and not last.endswith("ss") else last


@lru_cache(maxsize=4096)
def is_secret_parameter(name: str) -> bool:
    """Tell the same for a URL parameter or a form field: ``code``, ``key``, ``sid``."""
    words = words_in(name)
    joined = "".join(words)
    return (
        is_secret_name(name)
        or joined in _PARAMETERS
        or (words[-2:] == ["session", "id"])
        or (len(words) > 1 and words[-1] in ("signature", "sig"))
    )


@lru_cache(maxsize=4096)
def is_secret_header(name: str) -> bool:
    """Tell the same for a header, in lower case."""
    if name in _NOT_SECRET_HEADERS:
        return False
    words = words_in(name)
    if is_secret_name(name) or words[-2:] == ["session", "id"]:
        return True
    if not words or words[0] == "sec":
        return False
    return (
        words[-1] in _HEADERS
        or any(part in "".join(words) for part in ("apikey", "token", "password"))
        or bool({"token", "secret", "credential", "credentials", "jwt", "auth"} & set(words))
    )


def words_in(name: str) -> list[str]:
    """Return the words of a name, in lower case.

    >>> words_in("X-Amz-Security-Token"), words_in("oauthAPIKey2"), words_in("ACCESS_TOKEN")
    (['x', 'amz', 'security', 'token'], ['oauth', 'api', 'key', '2'], ['access', 'token'])
    """
    return [word.lower() for word in _WORD.findall(name[:200])]
