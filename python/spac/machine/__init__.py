"""What the machine has: processor, memory, device memory, and files that are written whole."""
