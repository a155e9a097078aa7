"""Facts about the machine (processor, memory, device memory), and files that are written atomically."""
