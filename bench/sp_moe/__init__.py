"""Repeat SP-MoE's tables and figures: recordings of a pair, replays on modelled machines, and live runs."""
