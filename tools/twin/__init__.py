"""Full-size twins: GGUFs of a named model's shapes whose synthetic weights behave (README.md)."""
