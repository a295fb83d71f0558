"""Generated protobuf code; ``make proto`` writes it from the ``.proto`` files beside it."""
