"""Accuracy studies: the same training with many seeds and settings, and what can be said of the difference."""
