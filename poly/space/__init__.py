"""The schedules that a program may have: their space, random walks in it, and what one costs.

Points are made here and weighed; measuring and searching are `farkas.tuning`'s.
"""
