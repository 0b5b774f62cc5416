"""What the automatic schedules of all targets share: queries about loops, and groups of statements.

Nothing here depends on the kind of machine.
"""
