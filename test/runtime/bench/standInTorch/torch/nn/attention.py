from torch import Scope


class SDPBackend:
    CUDNN_ATTENTION = "cuDNN"


def sdpa_kernel(backend):
    assert backend == SDPBackend.CUDNN_ATTENTION
    return Scope()
