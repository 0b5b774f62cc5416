"""The automatic schedule: which steps to apply, from access relations and the machine.

Every choice becomes steps of the checked `Schedule`, so nothing here has to be trusted.
"""
