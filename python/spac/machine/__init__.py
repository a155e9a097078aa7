"""Facts about the machine, atomic writing of files, lines for the terminal, types of arrays."""
