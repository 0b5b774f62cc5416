"""Farkas beside other compilers and libraries, measured in one run: ``python -m benchmarks``."""
