"""Schedules that were tuned on a machine, as records in a file, and their lookup.

They are measured and written by `farkas.tuning`; every compilation looks them up.
"""
