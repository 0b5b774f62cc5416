"""Goldens: the schedules and generated texts of known computations, kept to see every change."""
