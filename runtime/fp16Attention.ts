import { KvforgeError } from '../dsl/errors.js';
import type { HeadGeometry } from '../dsl/headGeometry.js';
import { layerShape } from '../dsl/model.js';
import { fp16PartialWords, fp16RecordWords } from '../dsl/stages/attendFp16.js';
import { checkLoaded, checkObject, checkWhole } from './cache/checkInput.js';
import { scoped } from './cache/scoped.js';
import type { DeviceBuffer, Launch } from './device.js';
import { checkHalf } from './halfBits.js';
import type { LoadedKernels } from './kernels.js';
import { planRows, planWork, type WorkPlan } from './work.js';

export interface Fp16Capacity {
  /** Sequences held side by side. */
  readonly sequences: number;
  /** Tokens that each of them has room for. */
  readonly tokens: number;
  /** Which layer of the model: its sliding window; 0 if left out. */
  readonly layer?: number;
}

export interface Fp16Tokens {
  /** f16 bits [KV heads][tokens][head dim], after RoPE. */
  readonly keys: Uint16Array;
  /** f16 bits [KV heads][tokens][head dim] */
  readonly values: Uint16Array;
  readonly tokens: number;
}

export interface Fp16Options {
  /** Query tokens of each sequence: its last ones, each seeing what is not after it; 1 if left out. */
  readonly queries?: number;
  /** Blocks that share one row of tokens; as many as keep the device busy if left out. */
  readonly splits?: number;
}

/** Blocks that fill a device whose multiprocessors are not known. */
const usualBlocks = 64;
/** Fewer tokens a block cost less than the block's own start. */
const leastTokensOfBlock = 128;

/**
 * Splits that give every multiprocessor one block, or as near below that as whole splits come.
 *
 * @param rows blocks of one split: sequences x queries x KV heads
 * @param tokens that a query sees, at most
 */
export function fp16Splits(rows: number, tokens: number, multiprocessors = usualBlocks): number {
  const most = Math.max(1, Math.ceil(tokens / leastTokensOfBlock));
  return Math.max(1, Math.min(most, Math.floor(multiprocessors / rows)));
}

/**
 * Uncompressed attention of one layer: f16 keys (after RoPE) and values as [sequences][KV heads][tokens][head dim] in
 * device memory, which the kernels of `generateFp16` read. What a compressed cache is measured against.
 *
 * @example
 * const generated = await generateFp16(model, defaultTargets[device.target]);
 * const fp16 = Fp16Attention.open(await LoadedKernels.load(device, generated), { sequences: 1, tokens: 256 });
 * fp16.write(0, { keys, values, tokens: 256 });
 * const output = await fp16.attend(query);
 * output.length; // model.heads * model.headDim
 * fp16.release();
 */
export class Fp16Attention {
  readonly #kernels: LoadedKernels<HeadGeometry>;
  readonly #capacity: Required<Fp16Capacity>;
  readonly #slidingWindow: number;
  readonly #records: DeviceBuffer;
  readonly #keys: DeviceBuffer;
  readonly #values: DeviceBuffer;
  #released = false;

  private constructor(kernels: LoadedKernels<HeadGeometry>, capacity: Required<Fp16Capacity>) {
    const { device, geometry: g } = kernels;
    this.#kernels = kernels;
    this.#capacity = capacity;
    this.#slidingWindow = layerShape(g.model, capacity.layer).slidingWindow ?? 0;
    const bytes = capacity.sequences * capacity.tokens * g.width * 2;
    const owned: DeviceBuffer[] = [];
    try {
      const allocate = (label: string, size: number) => {
        const buffer = device.allocate(label, size);
        owned.push(buffer);
        return buffer;
      };
      this.#records = allocate('records', capacity.sequences * fp16RecordWords * 4);
      this.#keys = allocate('keys', bytes);
      this.#values = allocate('values', bytes);
      const records = new Uint32Array(capacity.sequences * fp16RecordWords);
      for (let at = 0; at < records.length; at += fp16RecordWords) records.set(this.#record(0), at);
      device.write(this.#records, records);
    } catch (fault) {
      for (const buffer of owned) buffer.release();
      throw fault;
    }
  }

  /**
   * Allocates keys and values: `bytes` in all, and sequences that hold nothing yet.
   *
   * @throws KvforgeError `wrong-use` when kernels are not loaded, or a count is not a whole number in range;
   * `does-not-fit` when a kernel of the device cannot bind as much
   */
  static open(kernels: LoadedKernels<HeadGeometry>, capacity: Fp16Capacity): Fp16Attention {
    checkLoaded(kernels);
    checkObject(capacity, 'capacity', '{ sequences, tokens }');
    const { model, width } = kernels.geometry;
    const { sequences, tokens, layer = 0 } = capacity;
    checkWhole(sequences, { at: 'sequences', least: 1, most: 65535, hint: 'Open one for the whole batch.' });
    const bounds = `the positions of ${model.name}`;
    checkWhole(tokens, {
      at: 'tokens',
      least: 1,
      most: model.maxPositions,
      bounds,
      hint: 'Give those of one sequence.',
    });
    const most = model.layers - 1;
    checkWhole(layer, { at: 'layer', least: 0, most, hint: `${model.name} has ${model.layers} layers.` });
    // Kernels count words of two channels in 32 bits.
    const room = Math.min(kernels.device.limits.bytesPerBinding, 2 ** 34 - 4);
    const bytes = sequences * tokens * width * 2;
    if (bytes > room) {
      throw new KvforgeError('does-not-fit', {
        at: 'keys',
        expected: `at most ${room} bytes (what a kernel of this device binds)`,
        received: String(bytes),
        hint: 'Hold fewer sequences or tokens.',
      });
    }
    return new Fp16Attention(kernels, { sequences, tokens, layer });
  }

  get geometry(): HeadGeometry {
    return this.#kernels.geometry;
  }

  /** Bytes allocated for keys, values and records. */
  get bytes(): number {
    return this.#keys.bytes + this.#values.bytes + this.#records.bytes;
  }

  /**
   * Puts tokens into a sequence, replacing what it held.
   *
   * @throws KvforgeError `invalid-input` for a wrong length, a NaN or an infinity, with its position; `wrong-use` for a
   * sequence that there is not, or more tokens than there is room for
   */
  write(sequence: number, input: Fp16Tokens): void {
    this.#checkOpen();
    const { sequences, tokens: room } = this.#capacity;
    const { device, geometry: g } = this.#kernels;
    const hint = 'Name a sequence of the capacity.';
    checkWhole(sequence, { at: 'sequence', least: 0, most: sequences - 1, hint });
    checkObject(input, 'input', '{ keys, values, tokens }');
    const { tokens } = input;
    checkWhole(tokens, { at: 'tokens', least: 0, most: room, hint: 'Open it for more tokens.' });
    const dimensions = [
      { name: 'KV head', size: g.kvHeads },
      { name: 'token', size: tokens },
      { name: 'channel', size: g.headDim },
    ];
    checkHalf(input.keys, { name: 'keys', dimensions });
    checkHalf(input.values, { name: 'values', dimensions });
    const length = tokens * g.headDim;
    for (let head = 0; head < g.kvHeads && tokens > 0; head++) {
      const offset = (sequence * g.kvHeads + head) * room * g.headDim * 2;
      device.write(this.#keys, input.keys.subarray(head * length, (head + 1) * length), offset);
      device.write(this.#values, input.values.subarray(head * length, (head + 1) * length), offset);
    }
    device.write(this.#records, this.#record(tokens), sequence * fp16RecordWords * 4);
  }

  /**
   * Attention of query tokens of every sequence over what it holds; query i of n sees all but the last n - 1 - i tokens,
   * and no more than the layer's sliding window.
   *
   * @param query f16 bits [sequences][queries][heads][head dim], after RoPE
   * @returns float32 [sequences][queries][heads][head dim]; zeros where there is nothing to see
   */
  async attend(query: Uint16Array, options: Fp16Options = {}): Promise<Float32Array> {
    const { device } = this.#kernels;
    return scoped(async (owned) => {
      const { launches, output } = this.launches(query, options, owned);
      await device.run(launches);
      const bytes = await device.read(output);
      return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    });
  }

  /**
   * The launches of one attention, for whoever times or records them: on CUDA one, in WGSL two.
   *
   * A run of them that fails on the device may leave counters behind, by which the next would merge too early: take new
   * launches then.
   *
   * @param owned takes the buffers as they are allocated, so that the caller can release them whatever happens
   * @throws KvforgeError `does-not-fit` for more blocks or partial results than a launch takes
   * @example
   * const owned: DeviceBuffer[] = [];
   * const { launches } = fp16.launches(query, { splits: 2 }, owned);
   * await device.run(launches);
   * for (const buffer of owned) buffer.release();
   */
  launches(
    query: Uint16Array,
    options: Fp16Options,
    owned: DeviceBuffer[],
  ): { readonly launches: readonly Launch[]; readonly output: DeviceBuffer } {
    this.#checkOpen();
    const { device, geometry: g } = this.#kernels;
    checkObject(options, 'options', '{ queries, splits }, both optional');
    // Found here, not once a buffer is allocated that nobody would release.
    checkObject(owned, 'owned', 'a list that takes the buffers');
    const plan = this.#plan(query, options);
    const workItems = planRows(g, plan) * plan.splits;
    const allocate = (label: string, bytes: number, data?: ArrayBufferView) => {
      const buffer = device.allocate(label, bytes);
      owned.push(buffer);
      if (data) device.write(buffer, data);
      return { buffer };
    };
    const list = planWork(g, plan);
    const work = allocate('work', list.byteLength, list);
    const partials = allocate('partials', workItems * fp16PartialWords(g) * 4);
    const output = allocate('output', query.length * 4);
    const inputs = {
      sequences: { buffer: this.#records },
      work,
      keys: { buffer: this.#keys },
      values: { buffer: this.#values },
      query: allocate('query', query.byteLength, query),
      partials,
    };
    if (device.target === 'cuda') {
      const rows = planRows(g, plan);
      const counters = allocate('counters', rows * 4, new Uint32Array(rows));
      const bindings = { ...inputs, output, counters };
      return { launches: [this.#kernels.launch('attend_fp16', { workItems }, bindings)], output: output.buffer };
    }
    return {
      launches: [
        this.#kernels.launch('attend_fp16', { workItems }, inputs),
        this.#kernels.launch('attend_fp16_merge', { workItems }, { work, partials, output }),
      ],
      output: output.buffer,
    };
  }

  /** Frees the device memory; calls afterwards are refused. */
  release(): void {
    if (this.#released) return;
    this.#released = true;
    for (const buffer of [this.#records, this.#keys, this.#values]) buffer.release();
  }

  #plan(query: Uint16Array, { queries = 1, splits }: Fp16Options): WorkPlan {
    const { device, geometry: g } = this.#kernels;
    const { sequences, tokens } = this.#capacity;
    checkWhole(queries, { at: 'queries', least: 1, most: 65535, hint: 'Leave it out for one query token a sequence.' });
    checkHalf(query, {
      name: 'query',
      dimensions: [
        { name: 'sequence', size: sequences },
        { name: 'query token', size: queries },
        { name: 'head', size: g.heads },
        { name: 'channel', size: g.headDim },
      ],
    });
    const rows = sequences * queries * g.kvHeads;
    const seen = this.#slidingWindow === 0 ? tokens : Math.min(tokens, this.#slidingWindow);
    const chosen = splits ?? fp16Splits(rows, seen, device.identity.multiprocessors);
    checkWhole(chosen, { at: 'splits', least: 1, most: 1024, hint: 'Leave it out for the default.' });
    const { blocksPerDimension, bytesPerBinding } = device.limits;
    const most = Math.min(blocksPerDimension, Math.floor(bytesPerBinding / (fp16PartialWords(g) * 4)));
    if (rows * chosen > most) {
      throw new KvforgeError('does-not-fit', {
        at: 'queries',
        expected: `at most ${most} work items (what one launch of this device takes)`,
        received: `${rows * chosen} (${sequences} sequences x ${queries} queries x ${g.kvHeads} KV heads x ${chosen} splits)`,
        hint: 'Attend with fewer queries a call, or with fewer splits.',
      });
    }
    return { sequences, queries, splits: chosen };
  }

  /** Of a sequence that holds so many tokens. */
  #record(tokens: number): Uint32Array {
    return Uint32Array.of(tokens, this.#capacity.tokens, this.#slidingWindow);
  }

  #checkOpen(): void {
    if (!this.#released) return;
    const [received, hint] = ['none, as it was released', 'Open another one.'];
    throw new KvforgeError('wrong-use', { at: 'attention', expected: 'an open one', received, hint });
  }
}
