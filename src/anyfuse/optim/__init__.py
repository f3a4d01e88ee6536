"""Optimizers on the fused operators: `torch.optim.Optimizer` subclasses with one native call a group and step."""
