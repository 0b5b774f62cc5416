"""Memory plans: what shares storage, and that no value is overwritten while it is needed."""

from __future__ import annotations
