"""The commands, a module per noun; loaded when they are asked for."""
