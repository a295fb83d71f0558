"""Topics as tables and streams."""
