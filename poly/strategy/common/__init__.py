"""What the automatic schedules of all targets ask and do: extents of loops, and groups of
statements.

Nothing here knows which kind of machine it is for.
"""
