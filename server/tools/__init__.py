"""Tools that run elsewhere: servers of the Model Context Protocol, the operator's own and those that clients name."""
