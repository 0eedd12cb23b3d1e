"""A browser for logins: it follows redirects until one leads back to the client."""

import ssl
import time
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlsplit


class _Staying(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args):
        return None


class ScriptedBrowser:
    """``visited`` are the pages on the way, ``back`` what the last redirect says."""

    def __init__(self) -> None:
        self.visited: list[str] = []
        self.back: dict[str, list[str]] = {}
        # Reads $SSL_CERT_FILE.
        tls = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        self._opener = urllib.request.build_opener(_Staying, tls)

    def follow(self, url: str) -> str:
        """Return the URL of the client's that the redirects end at."""
        self.visited.clear()
        while "/callback?" not in url or "/mcp-tool-filter/" in url:
            if "/oauth/callback?" in url:
                break
            self.visited.append(url)
            try:
                with self._opener.open(url, timeout=20) as answer:
                    raise AssertionError(f"{answer.status} without a redirect: {url}")
            except urllib.error.HTTPError as error:
                with error:
                    if "location" not in error.headers:
                        raise AssertionError(f"{error.code} {error.read()!r}: {url}") from None
                    url = error.headers["location"]
        self.back = parse_qs(urlsplit(url).query)
        return url

    def open(self, url: str) -> None:
        """Follow, and go to the client, which may need a moment before it listens."""
        url = self.follow(url)
        for _ in range(200):
            try:
                with urllib.request.urlopen(url, timeout=20):
                    return
            except (urllib.error.HTTPError, TimeoutError):
                return
            except urllib.error.URLError:
                time.sleep(0.05)

    def said(self, name: str) -> str | None:
        return self.back.get(name, [None])[0]
