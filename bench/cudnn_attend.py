"""Times decode attention of cuDNN, through torch, for `kvforge bench`.

Reads requests and writes replies, one JSON object a line; what libraries print goes to stderr.
  {"op": "prepare", "batch", "tokens", "heads", "kvHeads", "headDim", "scale", "seed", "rotateBytes"}
      -> {"copies", "bytes", "maxError"}   inputs made, the launches captured in a CUDA graph, and its output checked
  {"op": "time", "samples"}                -> {"us": [...]}   microseconds of one attention, a sample each
  {"op": "end"}
The first line that it writes says what is here: {"torch", "cuda", "cudnn", "device"}, or {"missing"} with the reason.
"""

import json
import math
import os
import sys

# A library that prints must not come between the replies.
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def reply(value):
    replies.write(json.dumps(value) + "\n")
    replies.flush()


try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except (ImportError, OSError) as error:
    reply({"missing": str(error)})
    sys.exit(0)

# A sample lasts at least as long, so that the steps of the events' clock do not show.
SAMPLE_MS = 2.0
MOST_LAUNCHES = 4096


class Attention:
    """Attention of one query token a sequence, over enough copies of the inputs that none is in the L2 when it is read."""

    def __init__(self, batch, tokens, heads, kvHeads, headDim, scale, seed, rotateBytes, **_):
        self.bytes = 2 * batch * kvHeads * tokens * headDim * 2
        self.copies = max(1, math.ceil(rotateBytes / self.bytes))
        self.scale = scale
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.float16, generator=generator)

        self.inputs = [
            (normal(batch, heads, 1, headDim), normal(batch, kvHeads, tokens, headDim), normal(batch, kvHeads, tokens, headDim))
            for _ in range(self.copies)
        ]
        self.rounds = 1
        self.output = self.attend(*self.inputs[0])
        self.max_error = self.error()
        self.capture()
        self.rounds = max(1, min(MOST_LAUNCHES // self.copies, math.ceil(SAMPLE_MS / self.milliseconds())))
        self.capture()
        self.milliseconds()

    def attend(self, query, keys, values):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(query, keys, values, scale=self.scale, enable_gqa=True)

    def error(self):
        """Largest error of the heads of KV head 0 in the last sequence, over the largest magnitude, against float64."""
        query, keys, values = self.inputs[0]
        group = query.shape[1] // keys.shape[1]
        query, keys, values = query[-1, :group, 0].double(), keys[-1, 0].double(), values[-1, 0].double()
        weights = torch.softmax(query @ keys.T * self.scale, dim=-1)
        expected = weights @ values
        difference = (self.output[-1, :group, 0].double() - expected).abs().amax(dim=-1)
        return (difference / expected.abs().amax(dim=-1)).max().item()

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.attend(*self.inputs[0])
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.rounds):
                self.outputs = [self.attend(*each) for each in self.inputs]

    def milliseconds(self):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def time(self, samples):
        # One that is not timed: another process has had the GPU meanwhile.
        self.milliseconds()
        return [self.milliseconds() * 1000 / (self.copies * self.rounds) for _ in range(samples)]


def main():
    if not torch.cuda.is_available():
        reply({"missing": "torch finds no CUDA device"})
        return
    cudnn = torch.backends.cudnn.version()
    if cudnn is None:
        reply({"missing": "torch has no cuDNN"})
        return
    device = torch.cuda.get_device_name(0)
    reply({"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(cudnn), "device": device})
    attention = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["op"] == "prepare":
                # What the shape before has allocated goes first.
                attention = None
                torch.cuda.empty_cache()
                attention = Attention(**request)
                reply({"copies": attention.copies, "bytes": attention.bytes, "maxError": attention.max_error})
            elif request["op"] == "time":
                reply({"us": attention.time(request["samples"])})
            else:
                return
        except RuntimeError as error:
            attention = None
            reply({"failed": str(error).split("\n")[0]})


main()
