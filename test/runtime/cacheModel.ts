import fc from 'fast-check';
import { expect } from 'vitest';
import type { Geometry } from '../../dsl/geometry.js';
import type { Decoder, KvCache } from '../../runtime/cache.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import type { SequenceLengths } from '../../runtime/record.js';
import { seededRandom } from '../../runtime/reference/index.js';
import { halfValues, worstError } from '../../runtime/verify/draws.js';
import { attendVisible } from '../../runtime/verify/visible.js';
import { faultOf, halves, scheme, model as shape, tokenOf } from './cacheCase.js';

/** What a token decodes to: what came in while it is exact, what its code gave when it was coded from then on. */
interface Token {
  readonly keys: Uint16Array;
  readonly values: Uint16Array;
}

const segments = ['sinks', 'middle', 'stream', 'window'] as const;

/** A sequence as plain arrays of tokens, and how many it let go of. */
type Sequence = Readonly<Record<(typeof segments)[number], readonly Token[]>> & { readonly evicted: number };

/** What the cache should be: no codes, no offsets, no ring. */
export interface Model {
  readonly sequences: Sequence[];
  /** Room for a prompt; a load may bring more. */
  tokens: number;
  readonly generated: number;
  /** Tokens of the middle that are evicted together; 0 where only its last ones can be. */
  readonly unit: number;
}

/** The cache, which a load replaces by another. */
export interface Real {
  cache: KvCache;
  /** Of that cache, once a step has asked for it. */
  decoder?: Decoder | undefined;
  readonly open: (sequences: number, tokens: number, generated: number) => KvCache;
  readonly kernels: LoadedKernels;
}

export const empty: Sequence = { sinks: [], middle: [], stream: [], window: [], evicted: 0 };
const tokensOf = (sequence: Sequence) => segments.flatMap((segment) => sequence[segment]);
type Command = fc.AsyncCommand<Model, Real>;

/** Takes what coded tokens decode to, for those that have just been coded, and holds everything else to the model. */
async function compare(
  model: Model,
  { cache }: Real,
  codedNow: (sequence: number) => ReadonlySet<number>,
): Promise<void> {
  for (const [index, sequence] of model.sequences.entries()) {
    const lengths: Partial<SequenceLengths> = {
      sinkTokens: sequence.sinks.length,
      middleTokens: sequence.middle.length,
      streamTokens: sequence.stream.length,
      windowTokens: sequence.window.length,
      evictedTokens: sequence.evicted,
    };
    expect(await cache.lengths(index)).toMatchObject(lengths);
    const decoded = await cache.decompress(index);
    const expected = tokensOf(sequence);
    expect(decoded.tokens).toBe(expected.length);
    const coded = codedNow(index);
    const actual = expected.map((token, at): Token => {
      const found = { keys: tokenOf(decoded, decoded.keys, at), values: tokenOf(decoded, decoded.values, at) };
      if (!coded.has(at)) expect(found, `sequence ${index}, token ${at}`).toEqual(token);
      // Near what it stands for, so that it is this token and no other.
      else expect(distance(found.keys, token.keys), `sequence ${index}, token ${at}`).toBeLessThan(0.6);
      return found;
    });
    const rest = actual[Symbol.iterator]();
    const renewed = segments.map((name) => [name, sequence[name].map(() => rest.next().value!)] as const);
    model.sequences[index] = { ...empty, ...Object.fromEntries(renewed), evicted: sequence.evicted };
  }
}

function distance(a: Uint16Array, b: Uint16Array): number {
  const [x, y] = [halfValues(a), halfValues(b)];
  const norm = (values: Float64Array) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));
  return norm(x.map((value, i) => value - y[i]!)) / norm(y);
}

const none: ReadonlySet<number> = new Set();
const unchanged = () => none;
const range = (first: number, count: number) => new Set(Array.from({ length: count }, (_, i) => first + i));

class Prefill implements Command {
  constructor(
    readonly pick: number,
    readonly tokens: number,
    readonly seed: number,
  ) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const sequence = this.pick % model.sequences.length;
    const tokens = 1 + (this.tokens % model.tokens);
    const [keys, values] = [halves(tokens * shape.width, this.seed), halves(tokens * shape.width, this.seed + 1)];
    await real.cache.prefill(sequence, { keys, values, tokens });
    const all = Array.from({ length: tokens }, (_, token): Token => {
      const prompt = { keys, values, tokens };
      return { keys: tokenOf(prompt, keys, token), values: tokenOf(prompt, values, token) };
    });
    const sinks = Math.min(scheme.sinks, tokens);
    const window = Math.min(scheme.window, tokens - sinks);
    const middle = tokens - sinks - window;
    model.sequences[sequence] = {
      sinks: all.slice(0, sinks),
      middle: all.slice(sinks, sinks + middle),
      stream: [],
      window: all.slice(sinks + middle),
      evicted: 0,
    };
    await compare(model, real, (index) => (index === sequence ? range(sinks, middle) : none));
  }
  toString = () => `prefill(${this.pick}, ${this.tokens} tokens, seed ${this.seed})`;
}

class Append implements Command {
  constructor(
    readonly tokens: number,
    readonly seed: number,
  ) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const { tokens, seed } = this;
    const { sequences } = model;
    const count = sequences.length * tokens;
    const [keys, values] = [halves(count * shape.width, seed), halves(count * shape.width, seed + 1)];
    const leaving = sequences.map(({ window }) => Math.max(0, window.length + tokens - scheme.window));
    const full = sequences.findIndex(({ stream }, i) => stream.length + leaving[i]! > model.generated);
    const fault = await faultOf(this.bring(real, keys, values));
    if (full >= 0) {
      const needed = sequences[full]!.stream.length + leaving[full]!;
      expect(fault).toBe(
        `sequence ${full}: expected at most ${model.generated} tokens in the stream, got ${needed}. Open the cache with more generated tokens; nothing was appended to any sequence.`,
      );
      return compare(model, real, unchanged);
    }
    expect(fault).toBe('no error');
    const firsts = sequences.map(({ sinks, middle, stream }) => sinks.length + middle.length + stream.length);
    for (const [index, sequence] of sequences.entries()) {
      const row = (token: number) => {
        const from = (index * tokens + token) * shape.width;
        return [from, from + shape.width] as const;
      };
      const added = Array.from({ length: tokens }, (_, token): Token => {
        return { keys: keys.slice(...row(token)), values: values.slice(...row(token)) };
      });
      const window = [...sequence.window, ...added];
      const stream = [...sequence.stream, ...window.splice(0, leaving[index]!)];
      sequences[index] = { ...sequence, stream, window };
    }
    await compare(model, real, (index) => range(firsts[index]!, leaving[index]!));
  }
  protected async bring({ cache }: Real, keys: Uint16Array, values: Uint16Array): Promise<void> {
    await cache.append(keys, values, { tokens: this.tokens });
  }
  toString = () => `append(${this.tokens} tokens, seed ${this.seed})`;
}

/** A token appended and attended from, by a decoder that other commands come in between of. */
class Step extends Append {
  #output: Float32Array | undefined;
  #query: Uint16Array = new Uint16Array();
  constructor(seed: number) {
    super(1, seed);
  }
  override async run(model: Model, real: Real): Promise<void> {
    this.#output = undefined;
    await super.run(model, real);
    if (this.#output === undefined) return;
    checkAttended(this.#output, model.sequences, { g: real.cache.geometry, query: this.#query, queries: 1 });
  }
  protected override async bring(real: Real, keys: Uint16Array, values: Uint16Array): Promise<void> {
    real.decoder ??= await real.cache.decoder();
    this.#query = halves((keys.length / shape.width) * shape.heads * shape.headDim, this.seed + 2);
    this.#output = await real.decoder.step(keys, values, this.#query);
  }
  override toString = () => `step(seed ${this.seed})`;
}

/** Holds an attention output to float64 over the model's tokens. */
function checkAttended(
  output: Float32Array,
  sequences: readonly Sequence[],
  { g, query, queries }: { readonly g: Geometry; readonly query: Uint16Array; readonly queries: number },
): void {
  const values = halfValues(query);
  const expected = new Float64Array(query.length);
  for (const [index, sequence] of sequences.entries()) {
    const tokens = tokensOf(sequence);
    const tensor = (name: keyof Token) => {
      const data = new Float64Array(tokens.length * shape.width);
      for (const [at, token] of tokens.entries()) data.set(halfValues(token[name]), at * shape.width);
      return { heads: 1, tokens: tokens.length, channels: shape.headDim, data };
    };
    const decoded = { keys: tensor('keys'), values: tensor('values') };
    for (let row = 0; row < queries * g.heads; row++) {
      const at = (index * queries * g.heads + row) * g.headDim;
      const after = queries - 1 - Math.floor(row / g.heads);
      const input = { query: values.subarray(at, at + g.headDim), kvHead: 0, after, slidingWindow: 0 };
      expected.set(attendVisible(g, decoded, input), at);
    }
  }
  expect(worstError(output, expected, g.headDim).by).toBeLessThan(5e-3);
}

class Attend implements Command {
  constructor(
    readonly queries: number,
    readonly splits: number | undefined,
    readonly seed: number,
  ) {}
  check = () => true;
  async run({ sequences }: Model, { cache }: Real): Promise<void> {
    const { queries, splits, seed } = this;
    const g = cache.geometry;
    const query = halves(sequences.length * queries * g.heads * g.headDim, seed);
    const output = await cache.attend(query, { queries, ...(splits === undefined ? {} : { splits }) });
    checkAttended(output, sequences, { g, query, queries });
  }
  toString = () => `attend(${this.queries} queries, ${this.splits} splits, seed ${this.seed})`;
}

class Crop implements Command {
  constructor(
    readonly pick: number,
    readonly share: number,
  ) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const index = this.pick % model.sequences.length;
    const sequence = model.sequences[index]!;
    const total = tokensOf(sequence).length;
    let left = Math.round(this.share * total);
    await real.cache.crop(index, left);
    const kept = segments.map((name) => {
      const tokens = sequence[name].slice(0, left);
      left -= tokens.length;
      return [name, tokens] as const;
    });
    const evicted = this.share * total < 0.5 ? 0 : sequence.evicted;
    model.sequences[index] = { ...empty, ...Object.fromEntries(kept), evicted };
    await compare(model, real, unchanged);
  }
  toString = () => `crop(${this.pick}, ${this.share})`;
}

/** Some of the middle and of the stream: as many as the share says of them, or of their blocks, drawn one by one. */
class Keep implements Command {
  constructor(
    readonly pick: number,
    readonly share: number,
    readonly seed: number,
  ) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const index = this.pick % model.sequences.length;
    const sequence = model.sequences[index]!;
    const random = seededRandom(this.seed);
    const blocks = Math.ceil(sequence.middle.length / Math.max(1, model.unit));
    const chosen = Array.from({ length: blocks }, () => random() < this.share);
    const first = Math.round(this.share * sequence.middle.length);
    const middle = sequence.middle.map((_, token) =>
      model.unit === 0 ? token < first : chosen[Math.floor(token / model.unit)]!,
    );
    const keeps = [...middle, ...sequence.stream.map(() => random() < this.share)];
    const tokens = keeps.flatMap((keep, at) => (keep ? [sequence.sinks.length + at] : []));
    await real.cache.keep(index, this.seed % 2 === 0 ? tokens : Uint32Array.from(tokens));
    model.sequences[index] = {
      ...sequence,
      middle: sequence.middle.filter((_, token) => keeps[token]),
      stream: sequence.stream.filter((_, token) => keeps[sequence.middle.length + token]),
      evicted: sequence.evicted + keeps.length - tokens.length,
    };
    await compare(model, real, unchanged);
  }
  toString = () => `keep(${this.pick}, ${this.share}, seed ${this.seed})`;
}

class Fork implements Command {
  constructor(
    readonly from: number,
    readonly to: number,
  ) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const [from, to] = [this.from % model.sequences.length, this.to % model.sequences.length];
    await real.cache.fork(from, to);
    model.sequences[to] = model.sequences[from]!;
    await compare(model, real, unchanged);
  }
  toString = () => `fork(${this.from}, ${this.to})`;
}

class Reorder implements Command {
  constructor(readonly picks: readonly number[]) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const { sequences } = model;
    const sources = sequences.map((_, i) => this.picks[i % this.picks.length]! % sequences.length);
    await real.cache.reorder(sources);
    sequences.splice(0, sequences.length, ...sources.map((source) => sequences[source]!));
    await compare(model, real, unchanged);
  }
  toString = () => `reorder(${this.picks})`;
}

class SaveLoad implements Command {
  constructor(readonly moreTokens: number) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const file = await real.cache.save();
    await real.cache.release();
    real.decoder = undefined;
    model.tokens += this.moreTokens;
    real.cache = real.open(model.sequences.length, model.tokens, model.generated);
    await real.cache.load(file);
    expect(await real.cache.save()).toEqual(file);
    await compare(model, real, unchanged);
  }
  toString = () => `save and load(${this.moreTokens} more tokens)`;
}

class Refused implements Command {
  constructor(
    readonly call: (cache: KvCache, model: Model) => Promise<unknown>,
    readonly name: string,
  ) {}
  check = () => true;
  async run(model: Model, real: Real): Promise<void> {
    const fault = await faultOf(this.call(real.cache, model));
    expect(fault, this.name).toMatch(/: expected .*, got .*\. /);
    expect(fault, this.name).not.toMatch(/^TypeError/);
    await compare(model, real, unchanged);
  }
  toString = () => `refused: ${this.name}`;
}

const nan = Uint16Array.of(0x7e00);
const refused: readonly (readonly [string, Refused['call']])[] = [
  ['a prompt for a sequence that is none', (cache, { sequences }) => cache.prefill(sequences.length, prompt(3))],
  ['a prompt that is too long', (cache, { tokens }) => cache.prefill(0, prompt(tokens + 1))],
  [
    'a prompt with a NaN',
    (cache) => cache.prefill(0, { ...prompt(1), keys: new Uint16Array([...nan, ...halves(15, 1)]) }),
  ],
  [
    'a token with a NaN',
    (cache, { sequences }) => {
      const bits = halves(sequences.length * shape.width, 1);
      return cache.append(
        bits,
        bits.map((half, i) => (i === bits.length - 1 ? 0xfc00 : half)),
      );
    },
  ],
  ['more tokens than are held', (cache) => cache.crop(0, 1000)],
  ['a token to keep that is none', (cache) => cache.keep(0, [1000])],
  ['tokens to keep that are no list', (cache) => cache.keep(0, 'all' as never)],
  ['a fork to nowhere', (cache) => cache.fork(0, 9)],
  ['a source that is none', (cache, { sequences }) => cache.reorder(sequences.map(() => -1))],
  ['too few sources', (cache) => cache.reorder([])],
  ['a file cut short', async (cache) => cache.load((await cache.save()).slice(0, -1))],
];

function prompt(tokens: number) {
  return { keys: halves(tokens * shape.width, 1), values: halves(tokens * shape.width, 2), tokens };
}

const seed = fc.nat(0xffff);
const pick = fc.nat(2);

export const commands: readonly fc.Arbitrary<Command>[] = [
  fc.record({ pick, tokens: fc.nat(100), seed }).map((c) => new Prefill(c.pick, c.tokens, c.seed)),
  fc.record({ tokens: fc.integer({ min: 1, max: 7 }), seed }).map((c) => new Append(c.tokens, c.seed)),
  fc.record({ tokens: fc.constant(1), seed }).map((c) => new Append(c.tokens, c.seed)),
  seed.map((from) => new Step(from)),
  fc
    .record({ queries: fc.integer({ min: 1, max: 5 }), splits: fc.constantFrom(undefined, 1, 3), seed })
    .map((c) => new Attend(c.queries, c.splits, c.seed)),
  fc.record({ pick, share: fc.constantFrom(0, 0.3, 0.7, 0.9, 1) }).map((c) => new Crop(c.pick, c.share)),
  fc.record({ pick, share: fc.constantFrom(0, 0.2, 0.5, 0.8, 1), seed }).map((c) => new Keep(c.pick, c.share, c.seed)),
  fc.record({ from: pick, to: pick }).map((c) => new Fork(c.from, c.to)),
  fc.array(pick, { minLength: 3, maxLength: 3 }).map((picks) => new Reorder(picks)),
  fc.constantFrom(0, 5).map((more) => new SaveLoad(more)),
  fc.constantFrom(...refused).map(([name, call]) => new Refused(call, name)),
];
