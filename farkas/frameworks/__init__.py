"""Farkas in other frameworks: operators of torch and JAX, and a backend of ``torch.compile``.

Neither is imported before it is used.  What ATen operators mean is in `frontends.aten`.
"""
