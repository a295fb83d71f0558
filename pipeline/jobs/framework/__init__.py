"""What jobs are made of: configuration, frames, reports."""
