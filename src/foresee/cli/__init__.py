"""The command line, one file a command. Nothing imports it."""
