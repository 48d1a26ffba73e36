"""The protocol of scalers, optimizers and gradients, followed along every path of a function."""
