/**
 * What the test runs in the page: kernels generated there, and a prompt, appended tokens and attention judged against
 * the float64 reference, as `kvforge verify` does in Node.
 */
import {
  defaultTargets,
  type GeneratedKernels,
  generate,
  KvCache,
  KvforgeError,
  LoadedKernels,
  lloydMax,
  manifestText,
  presetModel,
  shard,
  shardPlus,
  WebGpuDevice,
} from '../../runtime/browser.js';
import {
  attend,
  attentionError,
  emptyTensor,
  type HeadTensor,
  headRows,
  vectorAt,
} from '../../runtime/reference/index.js';
import { halfBits, halfValues, numbers, worstError } from '../../runtime/verify/draws.js';
import { readHeld } from '../../runtime/verify/held.js';
import { type VerifyResult, verifyScheme } from '../../runtime/verify/verifyScheme.js';

/** What a conversation ended with. */
interface Conversation {
  /** Of the attention output, over its largest magnitude, against float64 on the same codes. */
  readonly error: number;
  /** What the compression loses of the attention output. */
  readonly lost: number;
  readonly middleTokens: number;
  readonly streamTokens: number;
}

/** What the page found, as JSON that a test reads. */
export interface PageResult {
  readonly description: string;
  /** By scheme and model (`shard/phi-3-mini`), then by file name. */
  readonly texts: Readonly<Record<string, Readonly<Record<string, string>>>>;
  readonly generateMs: Readonly<Record<string, readonly number[]>>;
  readonly compileMs: number;
  readonly judgeMs: number;
  readonly conversation: Conversation;
  readonly verified: VerifyResult;
  /** Of the same conversation on kernels that scale values wrongly. */
  readonly spoiltError: number;
  readonly refusals: Readonly<Record<string, string>>;
  /** What the page's policy makes of `new Function`. */
  readonly evaluation: string;
}

const models = ['smollm2-135m', 'llama-3.1-8b'] as const;

async function timed(model: (typeof models)[number], times: number): Promise<[GeneratedKernels, number[]]> {
  const ms: number[] = [];
  let kernels: GeneratedKernels | undefined;
  for (let run = 0; run < times; run++) {
    const start = performance.now();
    kernels = await generate(shard, presetModel(model));
    ms.push(performance.now() - start);
  }
  return [kernels!, ms];
}

/** A tensor of f16 numbers, [KV heads or heads][tokens][head dim]: as bits, and as float64. */
function drawn(
  seed: number,
  heads: number,
  tokens: number,
  channels: number,
): { bits: Uint16Array; tensor: HeadTensor } {
  const bits = halfBits(numbers({ kind: 'normal', seed }, heads * tokens, channels));
  return { bits, tensor: { ...emptyTensor(heads, tokens, channels), data: halfValues(bits) } };
}

/** The tokens of a tensor from `first` to before `end`, in the same order. */
function tokensOf({ bits, tensor }: ReturnType<typeof drawn>, first: number, end: number): Uint16Array {
  const { heads, tokens, channels } = tensor;
  const rows = Array.from({ length: heads }, (_, head) =>
    bits.subarray((head * tokens + first) * channels, (head * tokens + end) * channels),
  );
  return Uint16Array.from(rows.flatMap((row) => [...row]));
}

/** A prompt, generated tokens and one query by the public interface, against float64 attention on the same codes. */
async function converse(kernels: LoadedKernels): Promise<Conversation> {
  const g = kernels.geometry;
  const [prompt, generated] = [100, 3];
  const [keys, values] = [1, 2].map((seed) => drawn(seed, g.kvHeads, prompt + generated, g.headDim));
  const query = drawn(3, g.heads, 1, g.headDim);
  const cache = KvCache.open(kernels, { sequences: 1, tokens: prompt, generated });
  await cache.prefill(0, { keys: tokensOf(keys!, 0, prompt), values: tokensOf(values!, 0, prompt), tokens: prompt });
  for (let token = prompt; token < prompt + generated; token++) {
    await cache.append(tokensOf(keys!, token, token + 1), tokensOf(values!, token, token + 1));
  }
  const output = await cache.attend(query.bits);
  const { decoded, lengths } = await readHeld(cache, 0);
  await cache.release();
  const expected = new Float64Array(output.length);
  for (let head = 0; head < g.heads; head++) {
    const kvHead = Math.floor(head / g.groupSize);
    const [k, v] = [headRows(decoded.keys, kvHead), headRows(decoded.values, kvHead)];
    expected.set(attend({ query: vectorAt(query.tensor, head, 0), keys: k, values: v }).output, head * g.headDim);
  }
  return {
    error: worstError(output, expected, output.length).by,
    lost: attentionError({ queries: query.tensor, exact: { keys: keys!.tensor, values: values!.tensor }, decoded }),
    middleTokens: lengths.middleTokens,
    streamTokens: lengths.streamTokens,
  };
}

/** The kernels with the scale of the inverse Hadamard transform off by a thousandth: what a wrong result looks like. */
function spoil(kernels: GeneratedKernels): GeneratedKernels {
  const files = new Map(
    [...kernels.files].map(([name, text]) => [
      name,
      name === 'attend_merge.wgsl' || name === 'attend.wgsl'
        ? text.replace(/(const HADAMARD_SCALE = [\d.]+)/, '$1 * 1.001')
        : text,
    ]),
  );
  return { ...kernels, files };
}

async function refusal(action: () => Promise<unknown>): Promise<string> {
  return action().then(
    () => 'ACCEPTED',
    (error: unknown) => (error instanceof KvforgeError ? `${error.code}: ${error.message}` : String(error)),
  );
}

function evaluation(): string {
  try {
    return String(new Function('return "allowed"')());
  } catch (error) {
    return (error as Error).name;
  }
}

async function main(): Promise<PageResult> {
  const texts: Record<string, Record<string, string>> = {};
  const generateMs: Record<string, readonly number[]> = {};
  for (const model of models) {
    const [kernels, ms] = await timed(model, 15);
    generateMs[model] = ms;
    for (const { geometry, files, manifest } of [kernels, await generate(shardPlus, presetModel(model))]) {
      texts[`${geometry.scheme.name}/${model}`] = {
        ...Object.fromEntries(files),
        'manifest.json': manifestText(manifest),
      };
    }
  }
  const device = await WebGpuDevice.open({ poison: true });
  const kernels = await generate(shard, presetModel('smollm2-135m'));
  const start = performance.now();
  const loaded = await LoadedKernels.load(device, kernels);
  const compileMs = performance.now() - start;
  const conversation = await converse(loaded);
  // `kvforge verify`, as in Node: in this bundle it generates with the browser's `generate`.
  const verified = await verifyScheme(device, shard, presetModel('smollm2-135m'), { cases: 6, seed: 1 });
  const spoilt = await converse(await LoadedKernels.load(device, spoil(kernels)));
  const judgeMs = performance.now() - start - compileMs;
  await device.close();
  const smol = presetModel('smollm2-135m');
  const stream = { ...lloydMax({ bits: 8 }), source: 'https://example.org/my-codec.ts' };
  return {
    description: device.description,
    texts,
    generateMs,
    compileMs,
    judgeMs,
    conversation,
    verified,
    spoiltError: spoilt.error,
    refusals: {
      cuda: await refusal(() => generate(shard, smol, defaultTargets.cuda)),
      source: await refusal(() => generate({ ...shard, stream }, smol)),
    },
    evaluation: evaluation(),
  };
}

// Read by the test through the browser's debugging pipe.
Object.assign(globalThis, { result: main() });
