"""Instructions of CPUs that users declare: `intrinsic` and `load_intrinsics`.

How they are compared with their meaning is in `runtime.intrinsics`.
"""
