"""Parts shared by the automatic schedules of all targets: queries about loops, and grouping.

Nothing here depends on the kind of machine.
"""
