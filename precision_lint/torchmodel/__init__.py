"""What torch does, as data: operations, layers, creation, optimizers, libraries.

The JSON files are written by ``scripts/make_torchmodel.py`` and compared with torch by tests.  What is
not in them is unknown.
"""
