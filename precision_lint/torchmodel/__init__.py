"""What torch and its kin do, as data: operations, layers, creation, optimizers, AMP, NumPy, libraries.

Nothing here imports torch.  ``scripts/make_torchmodel.py`` writes the tables that torch itself can tell;
``ranges.json``, ``libraries.json``, ``tensors.json`` and ``amp.json`` are kept by hand.
"""
