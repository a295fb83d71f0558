"""Administration: offsets of groups, messages looked up."""
