"""Find secrets in free text by their shape, without a name.

>>> [text[a:b] for text in ["use ghp_0123456789abcdefABCD now"] for a, b in shapes_in(text)]
['ghp_0123456789abcdefABCD']

The expressions never backtrack into a run of characters, so the time is linear in the length of the
text.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

_VENDORS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      gh[pousr]_[A-Za-z0-9]{16,}+             # GitHub
    | github_pat_[A-Za-z0-9_]{16,}+
    | gl(?:pat|dt|rt|ptt|ft|soat|cbt|agent)-[A-Za-z0-9_.-]{16,}+   # GitLab
    | (?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}+  # Stripe
    | whsec_[A-Za-z0-9+/=]{16,}+
    | xox[a-z](?:\.xox[a-z])?-[A-Za-z0-9-]{10,}+    # Slack
    | xapp-[A-Za-z0-9-]{10,}+
    | (?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}(?![A-Za-z0-9])  # AWS
    | AIza[A-Za-z0-9_-]{30,}+                 # Google
    | ya29\.[A-Za-z0-9_.-]{16,}+
    | GOCSPX-[A-Za-z0-9_-]{16,}+
    | 1//[A-Za-z0-9_-]{30,}+
    | npm_[A-Za-z0-9]{30,}+
    | pypi-[A-Za-z0-9_-]{30,}+
    | hf_[A-Za-z0-9]{30,}+
    | SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}+
    | (?:bot)?[0-9]{6,12}:AA[A-Za-z0-9_-]{30,}+  # Telegram
    | v1\.0-[0-9a-f]{20,}+(?:-[0-9a-f]{16,}+)?  # Cloudflare
    | NR(?:AK|AA|RA|II|JS|AL|IQ|BR)-[A-Za-z0-9_-]{16,}+  # New Relic
    | do[opr]_v1_[0-9a-f]{32,}+
    | shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32,}+
    | lin_(?:api|oauth)_[A-Za-z0-9]{20,}+
    | (?:secret|ntn)_[A-Za-z0-9]{40,}+        # Notion
    | dapi[0-9a-f]{32}
    | ATATT3[A-Za-z0-9_=-]{30,}+
    | hv[sbr]\.[A-Za-z0-9_-]{20,}+            # Vault
    | dp\.[a-z]{2,6}\.[A-Za-z0-9]{30,}+
    | AGE-SECRET-KEY-1[A-Z0-9]{30,}+
    | tskey-[a-z]+-[A-Za-z0-9-]{16,}+
    | (?:gsk|r8|sbp|figd|sntrys|phx|glc|pat|key)_(?=[A-Za-z0-9_-]{0,40}[0-9])[A-Za-z0-9_-]{30,}+
    | (?:nvapi|pplx|xai)-[A-Za-z0-9_-]{30,}+
    )""",
    re.VERBOSE,
)
_PREFIXED = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      ABSK | aio_ | AKCp | AKID | AKLT | api_org_ | apify_api_ | AQVN | ATBB | ATCTT3 | BBDC- |
      bkpt_ | bkua_ | CCIPAT_ | CFPAT- | CLOJARS_ | ctx7sk- | dckr_oat_ | dckr_pat_ | ddp_ |
      dt0c01\. | dt0s01\. | dt0s16\. | e2b_ | EAAAE | EAAC | EAAG | EZAK | EZTK | FLWSECK- |
      FLWSECK_TEST- | fm1a_ | fm1r_ | fm2_ | fo1_ | ghv_ | glc_ | glffct- | glimt- | gloas- |
      glsa_ | GR1348941 | hfp_ | HRKU- | jina_ | livesk_ | lsv2_pt_ | lsv2_sk_ | LTAI | mdb_sa_sk_
      | nfp_ | ollama_ | ops_eyJ | ory_at_ | ory_pat_ |
      ory_rt_ | pat-eu1- | pat-na1- | pcsk_ | PMAK- | pnb_ | pnu_ | pscale_oauth_ | pscale_pw_ |
      pscale_tkn_ | pul- | rdme_ | rnd_ | rubygems_ | sb_secret_ | secret-token: | sgp_ | shppa_ |
      slk_ | sntrya_ | sntryu_ | sq0atp- | sq0csp- | sq0idp- | svix_ | SWMTKN-1- | t1\.9euel |
      testsk_ | tfp_ | tvly- | vck_ | vercel_blob_rw_ | waka_ | xkeysib- | xprv9 | xsmtpsib- |
      y0_Ag | zpka_
    )[A-Za-z0-9_.=+/~-]{16,}+""",
    re.VERBOSE,
)
_OPEN = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      [A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{40,}+
    | [MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}+  # Discord
    | AAAA[A-Za-z0-9_-]{7}:[A-Za-z0-9_-]{100,}+   # Firebase
    | BSA[A-Za-z0-9_-]{24,}+                  # Brave
    | re_[A-Za-z0-9]{6,10}_[A-Za-z0-9]{20,}+  # Resend
    | sl\.[A-Za-z0-9_.-]{80,}+                # Dropbox
    )""",
    re.VERBOSE,
)
_FIXED = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      SK[0-9a-f]{32}                          # Twilio
    | [0-9a-f]{32}-us[0-9]{1,2}               # Mailchimp
    | (?:key|pubkey)-[0-9a-f]{32}             # Mailgun
    | fc-[0-9a-f]{32}                         # Firecrawl
    | oy2[a-z0-9]{43}                         # NuGet
    )(?![A-Za-z0-9])""",
    re.VERBOSE,
)
# Makers of tokens say what they are in the prefix: acme_live_…, foo-pat-…, bar_api_key_…
_SAYS_SO = re.compile(
    r"(?<![A-Za-z0-9])(?:[A-Za-z0-9]{1,16}[_-]){0,3}"
    r"(?:key|apikey|api|pat|oat|tok|tkn|token|sk|rk|sec|secret|live|prod|oauth|auth|sa|pw|priv|cred)"
    r"(?:[_-][A-Za-z0-9]{1,8}){0,2}[_-]([A-Za-z0-9]{16,}+)(?![A-Za-z0-9])"
)
_NETRC = re.compile(r"\blogin[ \t]+\S{1,200}\s+password[ \t]+(\S{1,200})")
_USER_FLAG = re.compile(
    r"(?<!\S)(?:-u|--user|--userpwd)[ =][\"']?[^\s:/\"']{1,100}:(?!//)([^\s\"']{1,200})"
)
_SK = re.compile(r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{12,}+")  # OpenAI, Anthropic and others
_JWT = re.compile(r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{6,}+(?:\.[A-Za-z0-9_-]*+){2,4}")
_SCHEME = re.compile(
    r"(?<![A-Za-z0-9])(bearer|basic|dpop)(?:[ \t]|\\t){1,8}([A-Za-z0-9._~+/-]{6,}+=*+)(?![\"'])",
    re.IGNORECASE,
)
_HOOK = re.compile(
    r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9_/-]{10,}+)"
    r"|discord(?:app)?\.com/api/webhooks/([0-9]{5,}+/[A-Za-z0-9_-]{10,}+)"
    r"|api\.telegram\.org/(?:file/)?bot([0-9]{1,20}+:[A-Za-z0-9_-]{8,}+)"
)
_KEY_BLOCK = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=:, -]+")
_LONG = 20  # characters; a shorter word after "Bearer" must contain a digit


def shapes_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans that have the shape of a secret."""
    yield from (found.span() for found in _VENDORS.finditer(text))
    for found in _PREFIXED.finditer(text):
        if has_digit(found[0]):
            yield found.span()
    for pattern in (_OPEN, _FIXED):
        yield from (found.span() for found in pattern.finditer(text))
    for found in _SAYS_SO.finditer(text):
        if len(_DIGITS.findall(found[1])) >= 2 and not found[1].isdigit():
            yield found.span()
    for pattern in (_NETRC, _USER_FLAG):
        yield from (found.span(1) for found in pattern.finditer(text))
    for found in _SK.finditer(text):
        if has_digit(found[0]):
            yield found.span()
    yield from (found.span() for found in _JWT.finditer(text))
    for found in _SCHEME.finditer(text):
        scheme, said = found[1].lower(), found[2]
        if basic_parts(said) if scheme == "basic" else has_digit(said) or len(said) >= _LONG:
            yield found.span(2)
    for found in _HOOK.finditer(text):
        yield found.span(found.lastindex or 0)
    yield from _key_lines(text)


def basic_parts(credential: str) -> list[str]:
    """Return user and password of a Basic credential, or nothing.

    >>> basic_parts("Ym9iOmh1bnRlcjI=")
    ['bob', 'hunter2']
    """
    try:
        plain = base64.b64decode(credential + "=" * (-len(credential) % 4), validate=True)
        user, colon, password = plain.decode().partition(":")
    except (binascii.Error, ValueError):
        return []
    return [user, password] if colon else []


_DIGITS = re.compile(r"[0-9]+")


def has_digit(text: str) -> bool:
    return _DIGITS.search(text) is not None


def _key_lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the lines of private keys; a cut-off key ends with the text."""
    at = 0
    while begin := _KEY_BLOCK.search(text, at):
        end = text.find("-----END", begin.end())
        at = len(text) if end < 0 else end
        yield from (line.span() for line in _KEY_LINE.finditer(text, begin.end(), at))
