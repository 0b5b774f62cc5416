"""Farkas in other frameworks: operators of torch and JAX, a backend of ``torch.compile``, and
estimators of scikit-learn.

None of these is imported before it is used.  What ATen operators mean is in `frontends.aten`, what
fitted estimators compute in `frontends.sklearn`.
"""
