"""Suite narrow: kernels and networks in int8, bfloat16 and float16."""
