import { generate } from '../codegen/generate.js';
import { defaultTargets } from '../codegen/generateFrom.js';
import { halfPrecisionBytes } from '../codegen/plan/layout.js';
import type { Scheme } from '../dsl/scheme.js';
import { contentsBytes } from '../runtime/cache/contents.js';
import { totalTokens } from '../runtime/cache/lengths.js';
import type { Device } from '../runtime/device.js';
import { type CachePolicy, Evictor, heavyHitters, KvCache, LoadedKernels, slidingSinks } from '../runtime/index.js';
import { outputDifference } from '../runtime/reference/attention.js';
import { emptyTensor, vectorAt } from '../runtime/reference/shapes.js';
import type { Activations, LayerActivations } from '../runtime/report/activations.js';
import { outputsOver } from '../runtime/report/attentionOutputs.js';

/** One scheme under one policy, over recorded layers. */
export interface PolicyRow {
  readonly scheme: string;
  readonly policy: string;
  /** Of the prompt, what is held: where tokens go in blocks, a little more or less than was asked for. */
  readonly share: number;
  /** Bytes that hold the prompt, over those of all its tokens in f16. */
  readonly bytes: number;
  /** Of attention outputs against those over all tokens uncompressed, mean over the layers. */
  readonly error: number;
}

/** Of the last so many recorded queries and tokens one half is observed, the other generated and judged. */
const judged = 8;

interface NamedPolicy {
  readonly name: string;
  readonly policy: CachePolicy;
}

/** As many tokens for each policy, sinks included: half of what heavy hitters have is for the newest, as in H2O. */
function policiesFor(prompt: number, schemeSinks: number): readonly NamedPolicy[] {
  return [
    { name: 'all tokens', policy: slidingSinks({ window: prompt }) },
    ...[0.5, 0.25].flatMap((share) => {
      const window = Math.round(prompt * share) - 4;
      const recent = Math.round(window / 2);
      return [
        { name: 'slidingSinks', policy: slidingSinks({ window }) },
        // Where the scheme has none of its own, what sinks are for.
        ...(schemeSinks === 0 ? [{ name: 'slidingSinks, 0 sinks', policy: slidingSinks({ window, sinks: 0 }) }] : []),
        { name: 'heavyHitters', policy: heavyHitters({ budget: window - recent, recent }) },
      ];
    }),
  ];
}

/**
 * Attention error and bytes of schemes under policies: the prompt is compressed and looked at by its last queries, tokens
 * are evicted, the next tokens are generated, and their queries judge.
 */
export async function policyTable(
  device: Device,
  {
    schemes,
    activations,
    layers,
  }: {
    readonly schemes: readonly Scheme[];
    readonly activations: Activations;
    readonly layers: readonly number[];
  },
): Promise<readonly PolicyRow[]> {
  const rows: PolicyRow[] = [];
  for (const scheme of schemes) {
    const generated = await generate(scheme, activations.model, defaultTargets[device.target]);
    const kernels = await LoadedKernels.load(device, generated);
    const measured: Awaited<ReturnType<typeof measure>>[] = [];
    for (const layer of layers) measured.push(await measure(kernels, activations.layer(layer)));
    for (const [index, { name }] of measured[0]!.entries()) {
      const mean = (of: 'share' | 'bytes' | 'error') =>
        measured.reduce((sum, each) => sum + each[index]![of], 0) / measured.length;
      rows.push({
        scheme: scheme.name,
        policy: name,
        share: mean('share'),
        bytes: mean('bytes'),
        error: mean('error'),
      });
    }
  }
  return rows;
}

async function measure(kernels: LoadedKernels, activations: LayerActivations) {
  const { geometry: g } = kernels;
  const { layer, tokens, keyBits, valueBits, queryBits, exact, queries, visible } = activations;
  const prompt = tokens - judged;
  const policies = policiesFor(prompt, g.scheme.sinks);
  const cache = KvCache.open(kernels, { sequences: policies.length, tokens: prompt, generated: judged, layer });
  try {
    const part = (bits: Uint16Array, heads: number, first: number, end: number) =>
      cut({ bits, heads, channels: g.headDim }, first, end);
    const promptOf = (bits: Uint16Array) => part(bits, g.kvHeads, 0, prompt);
    await cache.prefill(0, { keys: promptOf(keyBits), values: promptOf(valueBits), tokens: prompt });
    for (const sequence of policies.keys()) if (sequence > 0) await cache.fork(0, sequence);
    const observed = queries.tokens - judged;
    const watching = swapped(part(queryBits, g.heads, 0, observed), [g.heads, observed, g.headDim]);
    const held: { readonly share: number; readonly bytes: number }[] = [];
    for (const [sequence, { policy }] of policies.entries()) {
      const evictor = new Evictor(cache, sequence, policy);
      await evictor.observe(watching, { queries: observed });
      await evictor.evict();
      const lengths = await cache.lengths(sequence);
      const bytes = contentsBytes(cache.layout, [lengths]) / halfPrecisionBytes(g, prompt);
      held.push({ share: totalTokens(lengths) / prompt, bytes });
    }
    // Every sequence goes on with the same tokens and queries.
    const next = (bits: Uint16Array, heads: number, first: number) => {
      const one = swapped(part(bits, heads, first, first + judged), [heads, judged, g.headDim]);
      return Uint16Array.from({ length: one.length * policies.length }, (_, at) => one[at % one.length]!);
    };
    await cache.append(next(keyBits, g.kvHeads, prompt), next(valueBits, g.kvHeads, prompt), { tokens: judged });
    const output = await cache.attend(next(queryBits, g.heads, observed), { queries: judged });
    const judges = emptyTensor(g.heads, judged, g.headDim);
    for (let head = 0; head < g.heads; head++) {
      for (let index = 0; index < judged; index++) {
        vectorAt(judges, head, index).set(vectorAt(queries, head, observed + index));
      }
    }
    const asked = { queries: judges, visible: visible.slice(observed), slidingWindow: 0 };
    const wanted = outputsOver(g, exact, asked);
    return policies.map(({ name }, sequence) => {
      const own = output.subarray(sequence * wanted.length, (sequence + 1) * wanted.length);
      const { error } = outputDifference(wanted, Float64Array.from(swapped(own, [judged, g.heads, g.headDim])));
      return { name, ...held[sequence]!, error };
    });
  } finally {
    await cache.release();
  }
}

interface HeadBits {
  /** [heads][tokens][channels] */
  readonly bits: Uint16Array;
  readonly heads: number;
  readonly channels: number;
}

/** Tokens from `first` to before `end` of every head. */
function cut({ bits, heads, channels }: HeadBits, first: number, end: number): Uint16Array {
  const some = new Uint16Array(heads * (end - first) * channels);
  for (let head = 0; head < heads; head++) {
    const from = (bits.length / heads) * head;
    some.set(bits.subarray(from + first * channels, from + end * channels), head * (end - first) * channels);
  }
  return some;
}

/** [a][b][channels] as [b][a][channels]. */
function swapped<Numbers extends Uint16Array | Float32Array>(
  data: Numbers,
  [a, b, channels]: readonly [number, number, number],
): Numbers {
  const other = data.slice() as Numbers;
  for (let i = 0; i < a; i++) {
    for (let j = 0; j < b; j++) {
      const from = (i * b + j) * channels;
      other.set(data.subarray(from, from + channels), (j * a + i) * channels);
    }
  }
  return other;
}

/** The rows as a table of Markdown. */
export function policyText(rows: readonly PolicyRow[]): string {
  const percent = (share: number) => `${(100 * share).toFixed(1)} %`;
  return [
    '| scheme | policy | tokens kept | bytes, of f16 | attention error |',
    '|---|---|---|---|---|',
    ...rows.map(
      ({ scheme, policy, share, bytes, error }) =>
        `| ${scheme} | ${policy} | ${percent(share)} | ${percent(bytes)} | ${error.toFixed(3)} |`,
    ),
  ].join('\n');
}
