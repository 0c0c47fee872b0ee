"""Encodes one layer with Shard's steps in PyTorch: what `scripts/gpu/encodeBench.ts` is put beside.

Usage: python3 bench/encode_torch.py FILE [--tokens 8192] [--seed 1] [--samples 5] [--make]

FILE is a safetensors file with `k` and `v`, F16 [8 KV heads, tokens, 128], keys after RoPE as Llama-3.1-8B rotates them.
`--make` writes it first: keys of a decaying spectrum with a mean, values of uneven channels, by seed; with `--samples 0`
nothing is timed.

Every step is timed with CUDA events, the median of the samples. Where PyTorch offers several ways to do a step, all are
timed and the fastest counts; float32 throughout, as in the kernels (TF32 is off, the default of PyTorch).
"""

import argparse
import json
import math
import struct

import torch

HEADS, DIM, RANK, SINKS, WINDOW = 8, 128, 192, 4, 64
WIDTH = HEADS * DIM
ROUNDS, ENTRIES, CHANNELS, LLOYD, SAMPLE = 24, 256, 4, 30, 4096
CUDA = torch.device("cuda")


def inverse_frequencies():
    """Of Llama-3.1-8B: theta 500000, and the scaling of its configuration (factor 8, 1 and 4, 8192)."""
    plain = 500000.0 ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    wavelength = 2 * math.pi / plain
    share = (8192 / wavelength - 1) / (4 - 1)
    mixed = (1 - share) * plain / 8 + share * plain
    scaled = torch.where(wavelength > 8192, plain / 8, torch.where(wavelength < 8192 / 4, plain, mixed))
    return scaled.to(CUDA)


def angles(tokens):
    turns = torch.arange(tokens, device=CUDA, dtype=torch.float64)[:, None] * inverse_frequencies()[None]
    return turns.cos().float(), turns.sin().float()


def rotate(x, cosine, sine):
    """[heads, tokens, dim], half pairing; with -sine it takes the rotation off."""
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)


def write_file(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 2
        header[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().cpu().numpy().tobytes())


def read_file(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name in ("k", "v"):
        first, end = header[name]["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.float16, count=(end - first) // 2, offset=first)
        tensors[name] = flat.reshape(header[name]["shape"]).to(CUDA)
    return tensors["k"], tensors["v"]


def make(path, tokens, seed):
    random = torch.Generator(CUDA).manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=random, device=CUDA)
    # Variances fall as 1 / (1 + i)^1.3 over the components, in a random basis of the whole layer.
    basis = torch.linalg.qr(normal(WIDTH, WIDTH)).Q
    deviations = 12 * (1 + torch.arange(WIDTH, device=CUDA)) ** -0.65
    plain = (normal(tokens, WIDTH) * deviations) @ basis.T + normal(WIDTH)
    keys = plain.reshape(tokens, HEADS, DIM).transpose(0, 1)
    cosine, sine = angles(tokens)
    values = normal(HEADS, tokens, DIM) * (0.2 + normal(HEADS, 1, DIM).abs())
    write_file(path, {"k": rotate(keys, cosine, sine).half(), "v": values.half()})


def hadamard_matrix():
    matrix = torch.ones(1, 1, device=CUDA)
    while matrix.shape[0] < DIM:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix / math.sqrt(DIM)


def timed(function, samples):
    """Milliseconds, the median over the samples, and the last result."""
    result = function()
    times = []
    for _ in range(samples):
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2], result


# Keys


def centre(keys, cosine, sine):
    plain = rotate(keys.float(), cosine, -sine).transpose(0, 1).reshape(-1, WIDTH)
    mean = plain.mean(0).half().float()
    return plain - mean, mean


def basis_svd_lowrank(centred):
    return torch.svd_lowrank(centred, q=RANK, niter=ROUNDS)[2]


def second_moment(centred):
    return centred.T @ centred / centred.shape[0]


def basis_subspace(centred):
    gram = second_moment(centred)
    basis = torch.rand(WIDTH, RANK, device=CUDA) * 2 - 1
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(gram @ basis).Q
    return ritz(gram, basis)


def basis_cholesky(centred):
    """As the kernels do it: two products, then Cholesky QR in float64, whose range takes what float32 lost."""
    gram = second_moment(centred)
    basis = torch.rand(WIDTH, RANK, device=CUDA) * 2 - 1
    for _ in range(ROUNDS // 2):
        wide = (gram @ (gram @ basis)).double()
        wide = wide / wide.norm(dim=0)
        factor, _ = torch.linalg.cholesky_ex(wide.T @ wide)
        basis = torch.linalg.solve_triangular(factor, wide.T, upper=False).T.float()
    basis = torch.linalg.qr(basis).Q
    return ritz(gram, basis)


def ritz(gram, basis):
    small = basis.T @ (gram @ basis)
    vectors = torch.linalg.eigh((small + small.T) / 2).eigenvectors.flip(1)
    return basis @ vectors


def basis_eigh(centred):
    return torch.linalg.eigh(second_moment(centred)).eigenvectors[:, -RANK:].flip(1)


def quantise_keys(centred, basis):
    basis_scales = (basis.abs().amax(0) / 127).half().float()
    basis_codes = (basis / basis_scales).round().clamp(-127, 127)
    coefficients = centred @ basis
    scales = (coefficients.abs().amax(0) / 7).half().float()
    codes = ((coefficients / scales).round().clamp(-7, 7) + 8).to(torch.uint8)
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return basis_codes.to(torch.int8), basis_scales, packed, scales


def decode_keys(basis_codes, basis_scales, packed, scales, mean, cosine, sine):
    codes = torch.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], RANK).float() - 8
    plain = (codes * scales) @ (basis_codes.float() * basis_scales).T + mean
    return rotate(plain.reshape(-1, HEADS, DIM).transpose(0, 1), cosine, sine).half()


# Values


def turn_values(values, matrix):
    turned = values.float().transpose(0, 1) @ matrix
    scales = turned.abs().amax(0).clamp(min=1e-8).half().float()
    return (turned / scales).reshape(-1, CHANNELS), scales


def seed_codebook(points):
    """k-means++ on a sample of 4096 points, without a word to the host."""
    sample = points[torch.randint(points.shape[0], (SAMPLE,), device=CUDA)]
    centroids = torch.empty(ENTRIES, CHANNELS, device=CUDA)
    centroids[0] = sample[0]
    distances = (sample - centroids[0]).square().sum(1)
    for entry in range(1, ENTRIES):
        centroids[entry] = sample[torch.multinomial(distances, 1)[0]]
        distances = torch.minimum(distances, (sample - centroids[entry]).square().sum(1))
    return centroids


def assign(points, centroids, chunk=1 << 18):
    """Nearest centroid by |c|^2 / 2 - x.c, a chunk of the points at a time."""
    half_norms = centroids.square().sum(1) / 2
    transposed = -centroids.T.contiguous()
    return torch.cat([torch.addmm(half_norms, part, transposed).argmin(1) for part in points.split(chunk)])


def update_index_add(points, codes, centroids):
    sums = torch.zeros_like(centroids).index_add_(0, codes, points)
    counts = torch.bincount(codes, minlength=ENTRIES)
    return torch.where(counts[:, None] > 0, sums / counts[:, None], centroids)


def update_one_hot(points, codes, centroids, chunk=1 << 18):
    extended = torch.cat([points, torch.ones_like(points[:, :1])], 1)
    names = torch.arange(ENTRIES, device=CUDA)[:, None]
    sums = sum((names == c).float() @ p for c, p in zip(codes.split(chunk), extended.split(chunk)))
    counts = sums[:, CHANNELS:]
    return torch.where(counts > 0, sums[:, :CHANNELS] / counts, centroids)


def lloyd(points, centroids, update):
    for _ in range(LLOYD):
        centroids = update(points, assign(points, centroids), centroids)
    return centroids


def decode_values(codes, codebook, scales, matrix):
    turned = codebook[codes].reshape(-1, HEADS, DIM) * scales
    return (turned @ matrix.T).transpose(0, 1).half()


def relative(decoded, exact):
    return ((decoded.double() - exact.double()).norm() / exact.double().norm()).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()
    if options.make:
        make(options.file, options.tokens, options.seed)
    if options.samples == 0:
        return
    keys, values = read_file(options.file)
    middle = slice(SINKS, keys.shape[1] - WINDOW)
    cosine, sine = (table[middle] for table in angles(keys.shape[1]))
    keys, values = keys[:, middle].contiguous(), values[:, middle].contiguous()
    matrix = hadamard_matrix()
    torch.manual_seed(options.seed)
    times = {}

    def step(name, function, samples=options.samples):
        times[name], result = timed(function, samples)
        return result

    centred, mean = step("centre", lambda: centre(keys, cosine, sine))
    bases = {}
    for name, fit in [
        ("basis: svd_lowrank", basis_svd_lowrank),
        ("basis: Gram, subspace, QR", basis_subspace),
        ("basis: Gram, subspace, Cholesky QR", basis_cholesky),
        ("basis: Gram, eigh", basis_eigh),
    ]:
        bases[name] = step(name, lambda: fit(centred), 3)
    errors = {}
    for name, basis in bases.items():
        coded = step("quantise keys", lambda: quantise_keys(centred, basis))
        errors[name] = relative(decode_keys(*coded, mean, cosine, sine), keys)
    points, scales = step("turn values", lambda: turn_values(values, matrix))
    start = step("seed codebook", lambda: seed_codebook(points), 3)
    for name, update in [("Lloyd: index_add", update_index_add), ("Lloyd: one-hot product", update_one_hot)]:
        centroids = step(name, lambda: lloyd(points, start, update), 3)
        codebook = centroids.half().float()
        codes = step("assign", lambda: assign(points, codebook).to(torch.uint8))
        errors[name] = relative(decode_values(codes.long(), codebook, scales, matrix), values)

    def best(prefix):
        """The fastest of those that err no more than the best does."""
        ways = [name for name in times if name.startswith(prefix)]
        least = min(errors[name] for name in ways if math.isfinite(errors[name]))
        return min((times[name], name) for name in ways if errors[name] <= 1.01 * least)

    chosen = [best("basis: "), best("Lloyd: ")]
    total = sum(time for time, _ in chosen)
    total += sum(times[name] for name in ("centre", "quantise keys", "turn values", "seed codebook", "assign"))
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "tokens": options.tokens,
        "milliseconds": times,
        "errors": errors,
        "counted": [name for _, name in chosen],
        "total": total,
        "total with svd_lowrank": total - chosen[0][0] + times["basis: svd_lowrank"],
    }
    for name, time in times.items():
        print(f"{name:40s} {time:10.3f} ms")
    for name, error in errors.items():
        print(f"{name:40s} {error:10.6f} relative error of {'values' if name.startswith('Lloyd') else 'keys'}")
    print(f"PyTorch in all: {report['total']:.2f} ms ({', '.join(report['counted'])})")
    print(f"PyTorch in all, with svd_lowrank: {report['total with svd_lowrank']:.2f} ms")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=2)


main()
