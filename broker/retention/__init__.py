"""Which log files may go, and when."""
