"""Logins that pass through us: clients log in at an address of ours, each user with their rights.

The clients compare what the metadata says with the address that they connect to, so the metadata
must name us; and the authorization server must still hear the upstream's own names.
"""
