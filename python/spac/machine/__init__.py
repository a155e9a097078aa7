"""Facts about the machine (processor, memory, device memory), atomic writing of files, types of arrays."""
