"""Other servers and libraries, measured beside Stentor in the same run."""
