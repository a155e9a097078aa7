"""Inputs that nobody would give on purpose: whatever they are, `spac.run` ends with 0 or 2, and with 2
it says why in one line. SPAC_FUZZ="factor=50" makes a run longer."""
