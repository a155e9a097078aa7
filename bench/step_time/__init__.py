"""A model of a step's time on machines given by their figures. Predictions, no measurements."""
