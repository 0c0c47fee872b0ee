/** One tensor of a cache: [head][token][channel], row-major. */
export interface HeadTensor {
  readonly heads: number;
  readonly tokens: number;
  /** Channels of a head, d. */
  readonly channels: number;
  readonly data: Float64Array;
}

/** [row][column], row-major. */
export interface Matrix {
  readonly rows: number;
  readonly columns: number;
  readonly data: Float64Array;
}

/** The d channels of one token of one head: a view, not a copy. */
export function vectorAt(tensor: HeadTensor, head: number, token: number): Float64Array {
  const start = (head * tensor.tokens + token) * tensor.channels;
  return tensor.data.subarray(start, start + tensor.channels);
}

/** Keys after RoPE and values, [kvHead][token][d] each. */
export interface Cache {
  readonly keys: HeadTensor;
  readonly values: HeadTensor;
}

/** A tensor of zeros. */
export function emptyTensor(heads: number, tokens: number, channels: number): HeadTensor {
  return { heads, tokens, channels, data: new Float64Array(heads * tokens * channels) };
}

/** The first `tokens` tokens of one head as [tokens][channels]. */
export function headRows(tensor: HeadTensor, head: number, tokens = tensor.tokens): Matrix {
  const start = head * tensor.tokens * tensor.channels;
  return {
    rows: tokens,
    columns: tensor.channels,
    data: tensor.data.subarray(start, start + tokens * tensor.channels),
  };
}
