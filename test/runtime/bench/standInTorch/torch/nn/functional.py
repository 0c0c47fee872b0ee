from torch import Tensor


def scaled_dot_product_attention(query, keys, values, scale, enable_gqa):
    assert enable_gqa and query.shape[2] == 1 and keys.shape == values.shape
    print("a library prints while it works")
    if keys.shape[0] == 3:
        raise RuntimeError("No available kernel. Aborting execution.\nException raised from ...")
    return Tensor(*query.shape)
