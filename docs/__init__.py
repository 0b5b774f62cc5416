"""The documentation, and in `tools` what makes and checks it."""
