"""Compilers, devices, libraries: what turns text into something that runs, and runs it.

Only the search for devices lies here itself.  No schedule or text is made here.
"""
