"""Terminal output, and the files that commands read and write.

The commands themselves are in `farkas.cli`.
"""
