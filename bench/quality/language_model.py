"""A Hugging Face model folder on the CPU: what it caches of a prefix, and how well it predicts from such a cache."""

import os

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# What schemes that weigh by queries ask for.
LAST_QUERIES = 32

_queries = {}


def _recording(module, query, key, value, attention_mask, **options):
    """Attention as it is, keeping the last queries of every layer: after RoPE they are seen nowhere else."""
    _queries[module.layer_idx] = query[0, :, -LAST_QUERIES:].half()
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


AttentionInterface.register("recording", _recording)
AttentionMaskInterface.register("recording", sdpa_mask)


class LanguageModel:
    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="recording", local_files_only=True
        ).eval()
        config = self.model.config
        self.layers = config.num_hidden_layers
        # Numbers of one token's keys in one layer; f16 takes two bytes of each, and as many of its values.
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.width = config.num_key_value_heads * head_dim
        if getattr(config, "attn_logit_softcapping", None) is not None:
            raise ValueError(f"{folder}: expected scores without a cap, which PyTorch's attention does not know")

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    @torch.inference_mode()
    def write_prefix(self, tokens, path):
        """What the model caches of a prefix, rounded to f16, as `kvforge reconstruct` reads it."""
        cache = DynamicCache()
        self.model(torch.tensor([tokens]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        tensors = {}
        for index, layer in enumerate(cache.layers):
            tensors[f"layers.{index}.keys"] = layer.keys[0].half().contiguous()
            tensors[f"layers.{index}.values"] = layer.values[0].half().contiguous()
            tensors[f"layers.{index}.queries"] = _queries[index].contiguous()
        save_file(tensors, path)

    @torch.inference_mode()
    def loss(self, cached, tokens):
        """
        Nats a token: the model reads `tokens` after the prefix of a file of keys and values and predicts each but the
        first, which the last token of the prefix would have to.
        """
        tensors = load_file(cached)
        cache = DynamicCache()
        for index in range(self.layers):
            keys, values = (tensors[f"layers.{index}.{operand}"].float()[None] for operand in ("keys", "values"))
            cache.update(keys, values, index)
        logits = self.model(torch.tensor([tokens[:-1]]), past_key_values=cache, use_cache=True).logits[0]
        return torch.nn.functional.cross_entropy(logits, torch.tensor(tokens[1:])).item()
