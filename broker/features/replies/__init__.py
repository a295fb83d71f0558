"""Replies to requests are pushed to the clients that wait for them."""
