"""Logins through us: clients log in at our address, and each user keeps their own rights.

Clients compare the metadata with the address that they connect to, so the metadata must name us;
but the authorization server must still get the upstream's own names.
"""
