from functools import wraps


def optimizer_wrapper(make, ema_decay):
    """Sets the decay on a finished optimizer, as the wrapper of Megatron's does."""

    @wraps(make)
    def wrapper(*args, **kwargs):
        optimizer = make(*args, **kwargs)
        optimizer.ema_decay = ema_decay
        return optimizer

    return wrapper
