"""What consumers ask: messages for a time, their ends, and offsets."""
