"""What a gateway does without an object per message: the same as with one."""
