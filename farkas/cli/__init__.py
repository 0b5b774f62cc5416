"""The command ``farkas``, with one command per file.

Printing is in `farkas.console`.
"""
