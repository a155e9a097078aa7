"""Tests with inputs that nobody would give on purpose.

For any of them, `spac.run` ends with 0 or 2. With 2 it gives the reason in one line. SPAC_FUZZ="factor=50"
makes a run longer.
"""
