"""Elections of masters, and the coordinator store that remembers them."""
