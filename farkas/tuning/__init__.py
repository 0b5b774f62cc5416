"""Tuning: searching the schedules of a program for the fastest, by measuring them.

Points and their estimates come from `poly.space`; records go to `runtime.tuned`.
"""
