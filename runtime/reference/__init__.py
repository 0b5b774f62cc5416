"""What programs mean, computed with numpy or instance by instance, and comparing with it.

It shares nothing with generated code, so that one can judge the other.
"""
