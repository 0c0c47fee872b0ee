import { layoutSequence, recordWords, type SequenceLayout } from '../../codegen/plan/layout.js';
import type { ScalarCodec } from '../../dsl/codec.js';
import { hadamard as hadamardStep } from '../../dsl/codecs/hadamard.js';
import { lloydMax } from '../../dsl/codecs/lloydMax.js';
import { polar } from '../../dsl/codecs/polar.js';
import { perChannel, perHead, perToken } from '../../dsl/codecs/quantize.js';
import { asymmetric, leastNumber, midRise, symmetric } from '../../dsl/codecs/uniform.js';
import { unrope } from '../../dsl/codecs/unrope.js';
import { geometryOf, type ScalarGeometry } from '../../dsl/geometry.js';
import { type ModelShape, modelFrom } from '../../dsl/model.js';
import { defineScheme, type ScalarScheme } from '../../dsl/scheme.js';
import { type SequenceLengths, writeRecord } from '../../runtime/record.js';
import { readField } from '../../runtime/reference/fields.js';
import { hadamard } from '../../runtime/reference/hadamard.js';
import {
  type Cache,
  emptyTensor,
  fromPolarForm,
  normalFrom,
  pairsOf,
  rotate,
  seededRandom,
  vectorAt,
} from '../../runtime/reference/index.js';
import { buildTables } from '../../runtime/tables.js';
import { type AttendDraw, drawQuery } from '../../runtime/verify/attendDraws.js';
import { halfBits, halfValues } from '../../runtime/verify/draws.js';
import { attendVisible } from '../../runtime/verify/visible.js';

export type Operand = 'keys' | 'values';

/** A scheme that codes every channel by itself, for one model. */
export interface ScalarCase {
  readonly name: string;
  readonly model: ModelShape;
  readonly scheme: ScalarScheme;
  readonly g: ScalarGeometry;
}

interface CaseParts extends Pick<ScalarScheme, 'keys' | 'values'> {
  readonly name: string;
  readonly kvHeads: number;
  readonly groupSize: number;
  readonly headDim: number;
  readonly rotaryDim?: number;
  readonly pairing?: 'half' | 'interleaved';
  readonly scoreCap?: number;
  readonly streamBits: 2 | 3 | 4 | 8;
}

function scalarCase({ name, kvHeads, groupSize, headDim, keys, values, streamBits, ...rest }: CaseParts): ScalarCase {
  const plain = modelFrom(
    {
      model_type: 'llama',
      hidden_size: kvHeads * groupSize * headDim,
      num_hidden_layers: 1,
      num_attention_heads: kvHeads * groupSize,
      num_key_value_heads: kvHeads,
      head_dim: headDim,
      rope_theta: 10000,
      max_position_embeddings: 4096,
    },
    name,
  );
  const { rotaryDim = headDim, pairing = 'half', scoreCap } = rest;
  const invFreq = Array.from({ length: rotaryDim / 2 }, (_, j) => 10000 ** ((-2 * j) / rotaryDim));
  const rope = { ...plain.rope, rotaryDim, pairing, invFreq };
  const model = { ...plain, rope, kinds: [{ rope }], ...(scoreCap === undefined ? {} : { scoreCap }) };
  const scheme = { name: 'case', keys, values, sinks: 4, window: 8, stream: lloydMax({ bits: streamBits }) };
  defineScheme(scheme);
  return { name, model, scheme, g: geometryOf(scheme, model) };
}

/** The norm of what is left of a block's numbers, where the offset matters to the sum of their squares. */
const shifted: ScalarCodec = (() => {
  const { device, ...codec } = lloydMax({ bits: 4 });
  return { ...codec, name: 'shifted', device: { ...device, offset: leastNumber } };
})();

/**
 * Between them: every width, every block of numbers that share a scale, an odd number of blocks in a row, Hadamard with
 * one block and with three, RoPE on some channels and on all, in both pairings, radii and angles of such pairs, radii below
 * zero too, offsets and none, capped scores.
 */
export const scalarCases: readonly ScalarCase[] = [
  scalarCase({
    name: 'int4 per token, turned, 9-3-64',
    kvHeads: 3,
    groupSize: 3,
    headDim: 64,
    keys: [hadamardStep(), perToken(symmetric({ bits: 4 }))],
    values: [hadamardStep(), perToken(lloydMax({ bits: 3 }))],
    streamBits: 8,
  }),
  scalarCase({
    name: 'int2 as KIVI, 8-2-128',
    kvHeads: 2,
    groupSize: 4,
    headDim: 128,
    keys: [perChannel(asymmetric({ bits: 2 }), { tokens: 32 })],
    values: [perToken(asymmetric({ bits: 2 }), { channels: 32 })],
    streamBits: 4,
  }),
  scalarCase({
    name: 'int3 per channel, unrope, 6-2-96',
    kvHeads: 2,
    groupSize: 3,
    headDim: 96,
    keys: [unrope(), perChannel(symmetric({ bits: 3 }))],
    values: [hadamardStep(), perHead(symmetric({ bits: 8 }))],
    streamBits: 3,
  }),
  scalarCase({
    name: 'int3 of 16 channels, unrope, 3-3-64',
    kvHeads: 3,
    groupSize: 1,
    headDim: 64,
    rotaryDim: 24,
    pairing: 'interleaved',
    keys: [unrope(), perToken(asymmetric({ bits: 3 }), { channels: 16 })],
    values: [perChannel(shifted, { tokens: 16 })],
    streamBits: 2,
  }),
  scalarCase({
    name: 'int8 per head, 5-1-128',
    kvHeads: 1,
    groupSize: 5,
    headDim: 128,
    keys: [perHead(asymmetric({ bits: 8 }))],
    values: [hadamardStep(), perChannel(asymmetric({ bits: 8 }))],
    scoreCap: 30,
    streamBits: 8,
  }),
  scalarCase({
    name: 'radius and angle of 4 bits, 8-2-128',
    kvHeads: 2,
    groupSize: 4,
    headDim: 128,
    keys: [polar(), perChannel(midRise({ bits: 4 }), { tokens: 32 })],
    values: [perToken(asymmetric({ bits: 4 }))],
    streamBits: 4,
  }),
  scalarCase({
    name: 'radius and angle of 3 bits, partial rotary, 3-3-64',
    kvHeads: 3,
    groupSize: 1,
    headDim: 64,
    rotaryDim: 24,
    pairing: 'interleaved',
    keys: [polar(), perChannel(lloydMax({ bits: 3 }), { tokens: 16 })],
    values: [hadamardStep(), perToken(asymmetric({ bits: 2 }))],
    streamBits: 3,
  }),
];

/** The numbers that a coded part of one sequence stands for, read bit by bit. */
export class ScalarShare {
  readonly g: ScalarGeometry;
  readonly layout: SequenceLayout;
  readonly bytes: Uint8Array;

  constructor(g: ScalarGeometry, layout: SequenceLayout, bytes: Uint8Array) {
    this.g = g;
    this.layout = layout;
    this.bytes = bytes;
  }

  part(name: string): Uint8Array {
    const { offset, bytes } = this.layout.parts.find((part) => part.name === name)!;
    return this.bytes.subarray(offset, offset + bytes);
  }

  half(name: string, index: number): number {
    const part = this.part(name);
    return halfValues([part[index * 2]! + 256 * part[index * 2 + 1]!])[0]!;
  }

  /** Where the scale of a channel of the middle lies in the scales of keys, or of values. */
  scaleIndex(operand: Operand, token: number, head: number, channel: number): number {
    const { scaleTokens, scaleChannels, scaleRowWords } = this.g[operand];
    const row = scaleTokens === 0 ? 0 : Math.floor(token / scaleTokens);
    return row * scaleRowWords * 2 + Math.floor((head * this.g.headDim + channel) / scaleChannels);
  }

  /** Offset and scale of a channel of the middle. */
  block(operand: Operand, token: number, head: number, channel: number): { offset: number; scale: number } {
    const noun = operand === 'keys' ? 'key' : 'value';
    const index = this.scaleIndex(operand, token, head, channel);
    const offset = this.g[operand].codec.device.offset ? this.half(`${noun}Offsets`, index) : 0;
    return { offset, scale: this.half(`${noun}Scales`, index) };
  }

  /** What every code stands for, over its scale. */
  values(operand: Operand): Float64Array {
    const { codec, levelChannels } = this.g[operand];
    return codeValues(codec, levelChannels);
  }

  /** The code of a channel of the middle. */
  code(operand: Operand, token: number, head: number, channel: number): number {
    const { bits, headWords } = this.g[operand];
    const codes = this.part(operand === 'keys' ? 'keyCodes' : 'valueCodes');
    const row = (token * this.g.kvHeads + head) * headWords * 32;
    return readField(codes, { offset: row + channel * bits, width: bits });
  }

  /** A vector of the middle as it is stored: keys before RoPE, or after Hadamard, where the scheme says so. */
  middle(operand: Operand, token: number, head: number): Float64Array {
    const values = this.values(operand);
    return Float64Array.from({ length: this.g.headDim }, (_, channel) => {
      const { offset, scale } = this.block(operand, token, head, channel);
      return offset + scale * values[this.code(operand, token, head, channel)]!;
    });
  }

  /** A vector of the stream, after RoPE. */
  stream(operand: Operand, token: number, head: number): Float64Array {
    const { g } = this;
    const name = operand === 'keys' ? 'streamKey' : 'streamValue';
    const values = codeValues(g.scheme.stream, g.headDim);
    const codes = this.part(`${name}Codes`);
    const norm = this.half(`${name}Norms`, token * g.normWords * 2 + head);
    const row = (token * g.kvHeads + head) * g.streamWords * 32;
    const turned = Float64Array.from({ length: g.headDim }, (_, channel) => {
      return norm * values[readField(codes, { offset: row + channel * g.streamBits, width: g.streamBits })]!;
    });
    return hadamard(turned);
  }

  /** All tokens in order, in float64. */
  decode(lengths: SequenceLengths): Cache {
    const { sinkTokens, middleTokens, streamTokens, windowTokens, windowStart } = lengths;
    const { g } = this;
    const tokens = sinkTokens + middleTokens + streamTokens + windowTokens;
    const vector = (operand: Operand, token: number, head: number): Float64Array => {
      const noun = operand === 'keys' ? 'Keys' : 'Values';
      const exact = (name: string, slot: number) =>
        Float64Array.from({ length: g.headDim }, (_, i) => this.half(name, slot * g.width + head * g.headDim + i));
      if (token < sinkTokens) return exact(`sink${noun}`, token);
      const middle = token - sinkTokens;
      if (middle < middleTokens) {
        const stored = this.middle(operand, middle, head);
        if (g[operand].turned) return hadamard(stored);
        if (g[operand].polar) return fromPolarForm(stored, g.model.rope);
        return g[operand].unrotated ? rotate(stored, token, g.model.rope) : stored;
      }
      const stream = middle - middleTokens;
      if (stream < streamTokens) return this.stream(operand, stream, head);
      return exact(`window${noun}`, (windowStart + stream - streamTokens) % g.scheme.window);
    };
    const tensor = (operand: Operand) => {
      const all = emptyTensor(g.kvHeads, tokens, g.headDim);
      for (let head = 0; head < g.kvHeads; head++) {
        for (let token = 0; token < tokens; token++) vectorAt(all, head, token).set(vector(operand, token, head));
      }
      return all;
    };
    return { keys: tensor('keys'), values: tensor('values') };
  }
}

const levelTables = new Map<ScalarCodec, Float32Array>();

/** The table that kernels get; of a Lloyd-Max code it takes long to find. */
export function levelTable(codec: ScalarCodec, channels: number): Float32Array {
  const table = levelTables.get(codec) ?? Float32Array.from(codec.levels(channels));
  levelTables.set(codec, table);
  return table;
}

function codeValues(codec: ScalarCodec, channels: number): Float64Array {
  const table = levelTable(codec, channels);
  return Float64Array.from({ length: 2 ** codec.bits }, (_, code) => codec.device.value(code, (i) => table[i]!));
}

/** A share with random codes; scales, offsets and exact tokens are normal, and scales are not negative. */
function drawShare(g: ScalarGeometry, layout: SequenceLayout, magnitude: number, random: () => number): Uint8Array {
  const angles = new Set(pairsOf(g.model.rope, g.headDim).map(([, second]) => second));
  const share = Uint8Array.from({ length: layout.bytes }, () => Math.floor(random() * 256));
  for (const { name, offset, bytes } of layout.parts) {
    if (name.endsWith('Codes')) continue;
    const size = /key/i.test(name) ? magnitude : 1;
    const drawn = Float64Array.from({ length: bytes / 2 }, () => size * normalFrom(random));
    const sized = /Scales|Norms/.test(name) ? drawn.map(Math.abs) : drawn;
    // Angles are a turn or two, whatever the size of keys: of many turns float32 would keep less.
    const inTurns = (x: number, at: number) => (angles.has(at % g.headDim) ? Math.tanh(x) : x);
    const turned = g.keys.polar && /^key(Scales|Offsets)$/.test(name) ? sized.map(inTurns) : sized;
    share.set(new Uint8Array(halfBits(turned).buffer), offset);
  }
  return share;
}

/** The device memory of a draw, and attention over it in float64. Bytes that no kernel may read are 0xff: NaN. */
export function scalarSetting(g: ScalarGeometry, { sequences, queries, seed }: AttendDraw) {
  const random = seededRandom(seed);
  const layouts = sequences.map(({ middle, stream, spare }) =>
    layoutSequence(g, { tokens: g.scheme.sinks + middle + spare + g.scheme.window, generated: stream + spare }),
  );
  const guard = 256;
  const cache = new Uint8Array(layouts.reduce((bytes, layout) => bytes + layout.bytes + guard, guard)).fill(0xff);
  const records = new Uint32Array(sequences.length * recordWords);
  const query = new Uint16Array(sequences.length * queries * g.heads * g.headDim);
  const expected = new Float64Array(query.length);
  const longest = Math.max(...sequences.map(({ sinks, middle, stream, window }) => sinks + middle + stream + window));
  let base = guard;
  const settings = sequences.map((draw, index) => {
    const layout = layouts[index]!;
    const lengths = {
      sinkTokens: draw.sinks,
      middleTokens: draw.middle,
      streamTokens: draw.stream,
      windowTokens: draw.window,
      windowStart: draw.windowStart,
      promptTokens: draw.sinks + draw.middle + draw.window,
    };
    const { slidingWindow } = draw;
    records.set(writeRecord(layout, base, lengths, { slidingWindow }), index * recordWords);
    cache.set(drawShare(g, layout, draw.magnitude, random), base);
    const share = cache.subarray(base, base + layout.bytes);
    const decoded = new ScalarShare(g, layout, share).decode(lengths);
    for (let row = 0; row < queries * g.heads; row++) {
      const kvHead = Math.floor((row % g.heads) / g.groupSize);
      const q = drawQuery(g, draw, { decoded, kvHead }, random);
      const at = (index * queries * g.heads + row) * g.headDim;
      query.set(halfBits(q), at);
      const after = queries - 1 - Math.floor(row / g.heads);
      expected.set(attendVisible(g, decoded, { query: q, kvHead, after, slidingWindow }), at);
    }
    base += layout.bytes + guard;
    return { layout, lengths, share, decoded };
  });
  const tables = buildTables(g, longest, g.model.rope.invFreq);
  return { records, cache, query, tables, expected, sequences: settings };
}
