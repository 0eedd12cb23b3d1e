"""A client program that we start: what surrounds it, and whether its traffic came through us."""
