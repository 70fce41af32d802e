"""Operations in the candidate's box: windows in, forecasts out. See `checkpoint.ModelServer`."""

import checkpoint

OPS = checkpoint.ModelServer().ops
warm = checkpoint.warm
