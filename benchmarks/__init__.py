"""Benchmarks of Farkas and other compilers and libraries in one run: ``python -m benchmarks``."""
