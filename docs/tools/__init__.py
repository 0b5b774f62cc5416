"""What makes and checks the documentation; see docs/contributing.md."""
