"""Topics, groups and status, as administrators ask for them."""
