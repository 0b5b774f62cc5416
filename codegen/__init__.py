"""From schedules to text: loops, vectors, and the C, CUDA or OpenCL that spells them.

Only lists of passes and the way back from text lie here; each folder says what it has.
"""
