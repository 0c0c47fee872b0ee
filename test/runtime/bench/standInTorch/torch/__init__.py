"""Stands in for torch where bench/cudnn_attend.py is tested: shapes alone, and every launch takes 0.4 ms."""

from types import SimpleNamespace

# As libraries do: none of it may reach the replies.
print("a library prints at its import")

__version__ = "2.11.0"
float16 = "f16"


class Tensor:
    def __init__(self, *shape):
        self.shape = shape

    def __getitem__(self, key):
        key = key if isinstance(key, tuple) else (key,)
        kept = [len(range(size)[k]) for size, k in zip(self.shape, key) if isinstance(k, slice)]
        return Tensor(*kept, *self.shape[len(key) :])

    @property
    def T(self):
        return Tensor(*reversed(self.shape))

    def __matmul__(self, other):
        assert self.shape[-1] == other.shape[-2], (self.shape, other.shape)
        return Tensor(*self.shape[:-1], other.shape[-1])

    def _like(self, other):
        assert self.shape == other.shape, (self.shape, other.shape)
        return self

    __sub__ = __truediv__ = _like

    def __mul__(self, number):
        return self

    def amax(self, dim):
        return Tensor(*self.shape[:-1])

    def double(self):
        return self

    abs = max = double

    def item(self):
        return 1e-4


def randn(*shape, device, dtype, generator):
    return Tensor(*shape)


def softmax(tensor, dim):
    return tensor


class Generator:
    def __init__(self, device):
        pass

    def manual_seed(self, seed):
        return self


class Scope:
    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Stream:
    def wait_stream(self, stream):
        pass


class Graph:
    replays = 0

    def replay(self):
        Graph.replays += 1


class Event:
    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 0.4


cuda = SimpleNamespace(
    is_available=lambda: True,
    get_device_name=lambda index: "Fake GPU",
    empty_cache=lambda: None,
    Stream=Stream,
    current_stream=Stream,
    stream=Scope,
    CUDAGraph=Graph,
    graph=Scope,
    Event=Event,
)
backends = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 91900))
version = SimpleNamespace(cuda="13.0")
