"""Index files, compared with the log and written anew."""
