"""The contract between Penstock's processes: messages, record layout, errors, names."""
