"""What Hugging Face transformers computes for the RoPE and the layers of a model of each architecture: test data.

Writes test/fixtures/rope/angles.json, which test/dsl/ropeAngles.test.ts holds modelFrom to. Needs torch and transformers
(a CPU build will do; no weights are downloaded):

    python -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers
    /tmp/venv/bin/python scripts/ropeAngles.py

For each configuration:

* `ropes`: the library's own rotary embedding of each type of layer, at several sequence lengths. `inv_freq` is what the
  library gives, in float32. Its float32 angles are off by up to 7e-3 near position 131072, so `inv_freq64`, `cos` and `sin`
  come from the same code of the library with float32 replaced by float64 (see `in_float64`), at `at` and `pairs`.
* `small`: the model itself, with heads of 16 channels and windows of 3 tokens, random weights, and an attention function
  that notes its arguments: scale, cap, how many of 6 keys the mask of each layer shows the last query, and for each kind of
  layer one key at positions 0 and 7. All tokens are the same, so the two keys differ by the rotation alone.
"""

import contextlib
import copy
import json
import os
import sys

import torch
import transformers
from transformers import AutoConfig, AutoModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

transformers.logging.set_verbosity_error()

LLAMA3 = dict(rope_type="llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
PHI4_LONG = [1, 1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897, 1.956131817, 2.187582649, 2.446418898,
             2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023, 4.785517845, 5.351743533, 5.984965424,
             6.693110555, 7.485043894, 8.370679318, 9.36110372, 10.4687158, 11.70738129, 13.09260651, 14.64173252,
             16.37415215, 18.31155283, 20.47818807, 22.90118105, 25.61086418, 28.64115884, 32.03, 32.1, 32.13, 32.23,
             32.6, 32.61, 32.64, 32.66, 32.7, 32.71, 32.93, 32.97, 33.28, 33.49, 33.5, 44.16, 47.77]
# Made up, in the range of Phi-3.5's published ones: [48] for heads of 96 channels.
PHI3_SHORT = [round(1 + 0.04 * j, 4) for j in range(48)]
PHI3_LONG = [round(1.08 * 1.08**j, 4) for j in range(48)]


def shape(model_type, hidden, layers, heads, kv=None, positions=4096, **rest):
    kv_heads = {} if kv is None else {"num_key_value_heads": kv}
    return dict(model_type=model_type, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                **kv_heads, max_position_embeddings=positions, **rest)


# The fields of published configurations that bear on attention, or such fields put together for a kind of RoPE.
CONFIGS = {
    "llama-2": shape("llama", 4096, 2, 32),
    "llama-3.1": shape("llama", 4096, 2, 32, 8, 131072, rope_theta=500000.0, rope_scaling=dict(LLAMA3, factor=8.0)),
    "llama-3.2": shape("llama", 2048, 2, 32, 8, 131072, head_dim=64, rope_parameters=dict(LLAMA3, factor=32.0, rope_theta=500000.0)),
    "llama-linear": shape("llama", 4096, 2, 32, rope_scaling=dict(type="linear", factor=4.0)),
    "llama-dynamic": shape("llama", 4096, 2, 32, positions=2048, rope_scaling=dict(type="dynamic", factor=2.0)),
    "arcee-yarn": shape("arcee", 2560, 2, 20, 4, 65536, head_dim=128, rope_scaling=dict(rope_type="yarn", factor=20.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, original_max_position_embeddings=3276)),
    "mistral-0.1": shape("mistral", 4096, 2, 32, 8, 32768, sliding_window=4096, rope_theta=10000.0),
    "mistral-left-out": dict(model_type="mistral", hidden_size=4096, num_hidden_layers=2, num_attention_heads=32, max_position_embeddings=32768),
    "mistral-0.3": shape("mistral", 4096, 2, 32, 8, 32768, sliding_window=None, rope_theta=1e6),
    "ministral": shape("ministral", 4096, 4, 32, 8, 131072, head_dim=128, sliding_window=32768, rope_theta=1e8, layer_types=["full_attention", "sliding_attention", "sliding_attention", "sliding_attention"]),
    "mixtral": shape("mixtral", 4096, 2, 32, 8, 32768, rope_theta=1e6, sliding_window=None),
    "qwen2.5": shape("qwen2", 3584, 3, 28, 4, 32768, rope_theta=1e6, sliding_window=131072, use_sliding_window=False),
    "qwen2.5-yarn": shape("qwen2", 3584, 3, 28, 4, 32768, rope_theta=1e6, use_sliding_window=False, rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "qwen2-sliding": shape("qwen2", 3584, 4, 28, 4, 32768, rope_theta=1e6, sliding_window=4096, use_sliding_window=True, max_window_layers=2),
    "qwen2-moe": shape("qwen2_moe", 2048, 6, 16, 16, 8192, rope_theta=1e6, sliding_window=4096, use_sliding_window=True, max_window_layers=5),
    "qwen3": shape("qwen3", 4096, 2, 32, 8, 40960, head_dim=128, rope_theta=1e6, use_sliding_window=False),
    "qwen3-moe": shape("qwen3_moe", 2048, 2, 32, 4, 40960, head_dim=128, rope_theta=1e6, use_sliding_window=True, sliding_window=4096),
    "phi-2": shape("phi", 2560, 2, 32, 32, 2048, partial_rotary_factor=0.4, rope_theta=10000.0),
    "phi-left-out": shape("phi", 2048, 2, 32, positions=2048),
    "phi-3-mini-4k": shape("phi3", 3072, 2, 32, 32, 4096, sliding_window=2047, original_max_position_embeddings=4096),
    "phi-3-longrope": shape("phi3", 3072, 2, 32, 32, 131072, sliding_window=262144, original_max_position_embeddings=4096, rope_scaling=dict(type="longrope", short_factor=PHI3_SHORT, long_factor=PHI3_LONG)),
    "phi-4-mini": shape("phi3", 3072, 2, 24, 8, 131072, sliding_window=262144, original_max_position_embeddings=4096, partial_rotary_factor=0.75, rope_scaling=dict(type="longrope", short_factor=[1.0] * 48, long_factor=PHI4_LONG)),
    "gemma": shape("gemma", 3072, 2, 16, 16, 8192, head_dim=256, rope_theta=10000.0),
    "gemma-2": shape("gemma2", 3584, 4, 16, 8, 8192, head_dim=256, query_pre_attn_scalar=224, sliding_window=4096, attn_logit_softcapping=50.0),
    "gemma-3": shape("gemma3_text", 2560, 7, 8, 4, 131072, head_dim=256, query_pre_attn_scalar=168, sliding_window=1024, sliding_window_pattern=6, rope_theta=1e6, rope_local_base_freq=10000.0, rope_scaling=dict(rope_type="linear", factor=8.0)),
    "gemma-3-nested": shape("gemma3_text", 1152, 7, 4, 1, 32768, head_dim=256, query_pre_attn_scalar=256, sliding_window=512, rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
    "stablelm": shape("stablelm", 2048, 2, 32, 32, 4096, partial_rotary_factor=0.25, rope_theta=10000.0),
    "pythia": shape("gpt_neox", 2048, 2, 16, positions=2048, rotary_pct=0.25, rotary_emb_base=10000),
    "gpt-neox": shape("gpt_neox", 6144, 2, 64, positions=2048, rotary_pct=0.5, rotary_emb_base=20000),
    "gpt-neox-dynamic": shape("gpt_neox", 2048, 2, 16, positions=2048, rope_scaling=dict(type="dynamic", factor=4.0)),
    "cohere": shape("cohere", 8192, 2, 64, 8, 131072, rope_theta=8e6),
    "cohere-left-out": shape("cohere", 8192, 2, 64, 64, 8192),
    "cohere2": shape("cohere2", 4096, 5, 32, 8, 8192, head_dim=128, rope_theta=50000.0, sliding_window=4096, sliding_window_pattern=4),
    "glm": shape("glm", 4096, 2, 32, 2, 131072, head_dim=128, partial_rotary_factor=0.5, rope_theta=10000.0),
    "glm4": shape("glm4", 4096, 2, 32, 2, 32768, head_dim=128, partial_rotary_factor=0.5, rope_theta=10000.0),
    "glm4-moe": shape("glm4_moe", 4096, 2, 96, 8, 131072, head_dim=128, partial_rotary_factor=0.5, rope_theta=1e6),
    "starcoder2": shape("starcoder2", 4608, 2, 36, 4, 16384, sliding_window=4096, rope_theta=999999.4420358813),
    "smollm3": shape("smollm3", 2048, 8, 16, 4, 65536, rope_theta=5e6, use_sliding_window=False, no_rope_layers=[1, 1, 1, 0] * 2),
    "smollm3-sliding": shape("smollm3", 2048, 5, 16, 4, 65536, use_sliding_window=True, sliding_window=4096, no_rope_layer_interval=2),
    "olmo": shape("olmo", 4096, 2, 32, 32, 2048, rope_theta=10000.0),
    "olmo2": shape("olmo2", 4096, 2, 32, 32, 4096, rope_theta=500000),
    "olmo3": shape("olmo3", 4096, 4, 32, 32, 65536, rope_theta=500000, sliding_window=4096, rope_scaling=dict(rope_type="yarn", attention_factor=1.2079441541679836, beta_fast=32, beta_slow=1, factor=8.0, original_max_position_embeddings=8192)),
    "olmoe": shape("olmoe", 2048, 2, 16, 16, 4096),
    "granite": shape("granite", 4096, 2, 32, 8, 131072, rope_theta=1e7, attention_multiplier=0.0078125),
    "granite-left-out": shape("granitemoe", 1536, 2, 24, 8, 4096),
    "seed-oss": shape("seed_oss", 5120, 2, 80, 8, 524288, head_dim=128, rope_theta=1e7),
    "helium": shape("helium", 2560, 2, 20, 20, 4096, head_dim=128),
    "ernie": shape("ernie4_5", 1024, 2, 16, 2, 131072, head_dim=128, rope_theta=500000.0),
    "nemotron": shape("nemotron", 6144, 2, 48, 8, 4096, head_dim=128, partial_rotary_factor=0.5),
    "yarn-mscale": shape("llama", 4096, 2, 32, positions=163840, rope_scaling=dict(type="yarn", factor=40, beta_fast=16, beta_slow=2, mscale=1.0, mscale_all_dim=0.8, truncate=False, original_max_position_embeddings=4096)),
}
# Widths that attention does not depend on, so that a model is built at once.
NARROW = dict(vocab_size=4, intermediate_size=8, moe_intermediate_size=4, shared_expert_intermediate_size=4,
              num_experts=2, num_local_experts=2, n_routed_experts=2, num_experts_per_tok=1, pad_token_id=0,
              bos_token_id=0, eos_token_id=0, first_k_dense_replace=64)


@contextlib.contextmanager
def in_float64():
    """The library's code names torch.float and Tensor.float(); here both mean float64."""
    saved = torch.float, torch.float32, torch.Tensor.float, torch.get_default_dtype()
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float, torch.float32, torch.Tensor.float = saved[:3]
        torch.set_default_dtype(saved[3])


def parsed(fields):
    return AutoConfig.for_model(**copy.deepcopy(fields))


def digits(values, count):
    return [float(f"%.{count}g" % value) for value in values]


def lengths_of(fields):
    """Sequence lengths to look at: both sides of where a kind of RoPE changes."""
    kind = (fields.get("rope_scaling") or {}).get("type")
    longest = fields["max_position_embeddings"]
    if kind == "dynamic":
        return [1000, longest, longest + 1, 8000]
    if kind == "longrope":
        return [1000, fields["original_max_position_embeddings"], fields["original_max_position_embeddings"] + 1, longest]
    return [longest]


def rotary(rotary_class, fields, layer_type, length):
    """Frequencies, attention scaling, and cos and sin at some positions, of a sequence of `length` tokens."""
    module = rotary_class(parsed(fields))
    at = [p for p in (0, 1, 7, 1000, 4095) if p < length - 1] + [length - 1]
    arguments = (torch.zeros(1, dtype=torch.float64), torch.tensor([at])) + ((layer_type,) if layer_type else ())
    cos, sin = module(*arguments)
    prefix = f"{layer_type}_" if layer_type else ""
    inv_freq = getattr(module, f"{prefix}inv_freq")
    scaling = getattr(module, f"{prefix}attention_scaling")
    cos, sin = cos[0], sin[0]
    # Some lay a pair's angle at channels 2j and 2j + 1, some at j and j + rotary/2: take the first channel of each pair.
    step = 2 if bool((cos[:, 0] == cos[:, 1]).all()) else 1
    return at, inv_freq, float(scaling), cos[:, ::step][:, : len(inv_freq)], sin[:, ::step][:, : len(inv_freq)]


def ropes_of(rotary_class, fields):
    nested = getattr(parsed(fields), "rope_parameters")
    types = [key for key in ("full_attention", "sliding_attention") if key in nested] or [None]
    found = []
    for layer_type in types:
        for length in lengths_of(fields):
            given = rotary(rotary_class, fields, layer_type, length)[1]
            with in_float64():
                at, exact, scaling, cos, sin = rotary(rotary_class, fields, layer_type, length)
            assert exact.dtype == torch.float64 and given.dtype == torch.float32
            last = len(exact) - 1
            pairs = sorted({0, last // 3, (2 * last) // 3, last})
            found.append(dict(
                layer_type=layer_type, length=length, attention_scaling=scaling,
                inv_freq=digits(given.tolist(), 8), inv_freq64=digits(exact.tolist(), 11), at=at, pairs=pairs,
                cos=[digits([row[p] for p in pairs], 7) for row in cos.tolist()],
                sin=[digits([row[p] for p in pairs], 7) for row in sin.tolist()],
            ))
    return found


def small_of(fields):
    """The same model with two heads of 16 channels, and windows of 3 tokens."""
    small = copy.deepcopy(fields)
    old = fields.get("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
    small.update(hidden_size=32, num_attention_heads=2)
    if "num_key_value_heads" in small or fields["model_type"] not in ("llama", "phi", "gpt_neox"):
        small["num_key_value_heads"] = 1
    if fields["model_type"] not in ("gpt_neox", "stablelm", "phi3"):
        small["head_dim"] = 16
    if small.get("sliding_window") or fields["model_type"] == "mistral" and "sliding_window" not in small:
        small["sliding_window"] = 3
    for factors in ("short_factor", "long_factor"):
        if factors in (small.get("rope_scaling") or {}):
            pairs = len(small["rope_scaling"][factors]) * 16 // old
            small["rope_scaling"][factors] = small["rope_scaling"][factors][:pairs]
    return small


def record(module, query, key, value, attention_mask, scaling=None, softcap=None, **_):
    record.calls.append(dict(key=key[0, 0].clone(), mask=attention_mask, scale=scaling, cap=softcap))
    return torch.zeros(query.shape[0], query.shape[2], query.shape[1], query.shape[3], dtype=query.dtype), None


ALL_ATTENTION_FUNCTIONS.register("record", record)
ALL_MASK_ATTENTION_FUNCTIONS.register("record", eager_mask)


def calls_of(model, tokens, **arguments):
    record.calls = []
    with torch.no_grad():
        model(input_ids=torch.ones(1, tokens, dtype=torch.long), use_cache=False, **arguments)
    return record.calls


def run_small(small):
    torch.manual_seed(1)
    with in_float64():
        model = AutoModel.from_config(parsed(dict(small, **NARROW)), attn_implementation="record", experts_implementation="eager").double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        seen = calls_of(model, 6)
        turned = calls_of(model, 2, position_ids=torch.tensor([[0, 7]]))
    visible = [int((call["mask"][0, 0, -1] >= 0).sum()) for call in seen]
    layers = []
    for call, turn, count in zip(seen, turned, visible):
        assert call["key"].shape == (6, 16)
        keys = [digits(row, 7) for row in turn["key"].tolist()]
        layers.append(dict(visible=count, rotates=keys[0] != keys[1], keys=keys))
    kinds = {}
    for index, layer in enumerate(layers):
        if not kinds.setdefault((layer["visible"], layer["rotates"]), index) == index:
            del layer["keys"]
    return dict(config=small, scale=seen[0]["scale"], cap=seen[0]["cap"], layers=layers), type(model.rotary_emb)


def main():
    models = {}
    for name, fields in CONFIGS.items():
        small, rotary_class = run_small(small_of(fields))
        models[name] = dict(config=fields, ropes=ropes_of(rotary_class, fields), small=small)
        print(name, rotary_class.__name__, small["scale"], small["cap"], [(l["visible"], l["rotates"]) for l in small["layers"]])
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "test", "fixtures", "rope")
    versions = dict(torch=torch.__version__, transformers=transformers.__version__)
    path = os.path.join(folder, "angles.json")
    with open(path, "w") as file:
        rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(model, separators=(',', ':'))}" for name, model in models.items())
        file.write(f'{{"versions": {json.dumps(versions)},\n"models": {{\n{rows}\n}}}}\n')
    print(versions, "python", sys.version.split()[0], os.path.getsize(path), "bytes")


main()
