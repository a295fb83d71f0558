"""The senders and receivers of a drill, each in a process of its own."""

PLACES = {
    "produce": "producer",
    "consume": "consumer",
    "promise": "producer-promises",
    "work": "consumer-orderly",
    "pop": "consumer-simple",
}
"""By role: what its processes are called, with a number behind."""
EACH = 2
"""Orderly consumers, and simple ones: one that is killed, and one that goes on."""
