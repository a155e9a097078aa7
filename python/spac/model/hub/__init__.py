"""Models by name: `OWNER/REPO[:QUANT]` on a model hub, its files, and the cache that tools share."""
