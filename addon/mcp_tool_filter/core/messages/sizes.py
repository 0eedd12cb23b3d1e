"""How much we take of what others send, where no standard and no measurement says it.

A number that is a fact of its own (a limit that users set, what a standard says, what takes so many
milliseconds) stays where that fact is.
"""

from typing import Final

NAME: Final = 256
"""Characters of a name, an id or a sentence."""
URI: Final = 32 * 1024
"""Characters of a URI, or of one header."""
HEAD: Final = 64 * 1024
"""Bytes of a head, of a document about logins, or of one definition."""
MESSAGE: Final = 10 * 1024 * 1024
"""Bytes of a message."""
MANY: Final = 1000
"""How many we remember of what others can name as they like."""
