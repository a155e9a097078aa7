"""Make the demo pair, a small Mixture-of-Experts target and a dense draft, from installed text."""
