"""The command ``farkas``, one command a file.

What it prints with is in `farkas.console`.
"""
