"""How well a router tells its experts from the input of an earlier layer."""
