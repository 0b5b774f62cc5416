"""Shared by all targets: call arguments, the cache on disk, fingerprints, reports.

Nothing here depends on a compiler or a device.
"""
