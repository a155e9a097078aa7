"""One short program for each client. Each runs in an environment that has this client alone."""
