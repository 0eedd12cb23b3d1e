"""Start a client program, set up its environment, and check that its traffic came through us."""
