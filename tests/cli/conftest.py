"""What the tests of the command line share."""

from tests.cli.fixtures import home, own_logging, ran, typed

__all__ = ["home", "own_logging", "ran", "typed"]
