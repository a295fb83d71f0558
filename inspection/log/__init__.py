"""Log files, read record by record without opening the store."""
