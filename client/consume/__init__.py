"""From a fetched batch to the application."""
