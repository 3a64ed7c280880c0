"""What keeps a plain PyTorch loop working around the graphs: parameters at rest, gradients, optimizers, statistics."""
