"""Where kernels run: CPU, GPU or emulator, and how a program is compiled for each.

The results that users hold are in `farkas.kernels` and `farkas.networks`.
"""
