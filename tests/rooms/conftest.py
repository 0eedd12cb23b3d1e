"""What the tests of all rooms share."""

from tests.cli.fixtures import home, own_logging, ran, typed

__all__ = ["home", "own_logging", "ran", "typed"]
