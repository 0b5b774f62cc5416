"""Where kernels run: CPU, GPU or emulator, and what compiles a program for one.

What users hold afterwards is in `farkas.kernels` and `farkas.networks`.
"""
