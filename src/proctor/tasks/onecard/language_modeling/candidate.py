"""Operations in the candidate's box: token ids in, logits out. See `checkpoint.ModelServer`."""

import checkpoint

DEFAULT_BLOCK = 256


def describe(config):
    """What the host needs of the config: how long a context the model takes."""
    value = config.get("block_size", DEFAULT_BLOCK)
    return {"block_size": value if isinstance(value, int) else str(value)}


OPS = checkpoint.ModelServer(describe).ops
warm = checkpoint.warm
