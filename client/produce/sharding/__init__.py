"""What becomes of the messages of a sharding key when brokers go and come back."""
