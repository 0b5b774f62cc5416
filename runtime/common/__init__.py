"""What all targets share: arguments of calls, the cache on disk, fingerprints, reports.

Nothing here knows a compiler or a device.
"""
