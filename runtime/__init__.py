"""What every process stands on: configuration files, clock, ports, channels, files that are whole."""
