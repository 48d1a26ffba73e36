"""Abstract interpretation: transfer functions, fixpoints, calls, and what is known across files."""
