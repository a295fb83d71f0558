"""The command ``penstock``; each command is imported when it is used."""
