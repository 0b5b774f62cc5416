"""Instructions that users declare, run and compared with their meaning.

How schedules use them is in `poly.buffers`; how they are declared, in `farkas.intrinsics`.
"""
