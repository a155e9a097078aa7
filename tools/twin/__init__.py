"""Make full-size twins: GGUFs of a named model's shapes with synthetic weights that imitate its routing
(README.md)."""
