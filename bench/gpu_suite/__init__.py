"""Check and measure in stages what only a machine with a GPU can show."""
