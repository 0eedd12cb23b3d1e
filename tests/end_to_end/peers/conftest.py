"""The peers are programs with SDKs of their own: pytest must not import them here."""

collect_ignore_glob = ["*"]
