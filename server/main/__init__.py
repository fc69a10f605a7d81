"""The command line: options, start-up display, exit codes."""
