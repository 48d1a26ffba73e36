"""precision-lint: a linter for mixed-precision hazards in PyTorch code."""

__version__ = "0.1.0"
