"""Make a Mixture-of-Experts model of a dense chat model by dividing its feed-forward blocks."""
