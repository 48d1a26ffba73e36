"""Rewritings of a program that change nothing of what it does: the findings must stay the same."""
