"""POP: messages are received one by one, each for a time, by any number of consumers of a queue."""
