"""Replay of schedulers over traces of real routing."""
