"""The senders and receivers of a drill, each in a process of its own."""
