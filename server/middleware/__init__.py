"""Access to the server: keys, origins, hosts, request ids."""
