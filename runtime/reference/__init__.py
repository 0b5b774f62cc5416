"""The meaning of programs, computed with numpy or instance by instance, and comparisons with it.

It shares no code with the generator, so that one can check the other.
"""
