"""Model a step's time on machines given by their figures. The results are predictions, no measurements."""
