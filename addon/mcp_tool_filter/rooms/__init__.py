"""What filtering tools over HTTP does not need. Each room can be deleted, and the rest runs."""
