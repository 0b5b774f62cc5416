"""Compilers, devices and libraries: build generated text and run it.

This folder itself holds only the search for devices.  No schedule or text is made here.
"""
