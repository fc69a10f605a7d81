"""Options of the command line, the environment and the TOML file, read into the tree of :mod:`..config`."""
