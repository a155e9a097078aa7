"""A model of a step's time on machines given by their figures. It predicts, and measures nothing."""
