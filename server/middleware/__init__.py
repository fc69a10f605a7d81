"""Who comes in: keys, origins, TLS, and the sockets that all of it stands on."""
