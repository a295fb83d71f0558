"""From a message to an acknowledged batch."""
