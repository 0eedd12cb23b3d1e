"""The lane: the short way of the commonest exchange, a plain call of an allowed tool.

For whoever has many clients: a call takes half the time, and nothing else changes. ``lane`` proves
by a call's bytes that only its name is to be judged, forwards it and its plain result, and makes
the exchange of everything else that it would have been. ``plug`` sets ``Service.take_lane`` of each
site. Without it all calls go the whole way, as they do for whoever wants to see more of them. A
request that is no call costs one search for its method.
"""
