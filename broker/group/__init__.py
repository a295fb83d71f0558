"""One broker among its brokers: role, register, the master's log, nameservers."""
