import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { generate } from '../../codegen/generate.js';
import { layoutSequence, splitPrompt } from '../../codegen/plan/layout.js';
import type { ScalarGeometry, ScalarGroups } from '../../dsl/geometry.js';
import type { Device } from '../../runtime/device.js';
import { LoadedKernels } from '../../runtime/kernels.js';
import { writeRecord } from '../../runtime/record.js';
import { hadamard } from '../../runtime/reference/hadamard.js';
import { polarForm, unrotate } from '../../runtime/reference/index.js';
import { buildTables } from '../../runtime/tables.js';
import { attendDraws } from '../../runtime/verify/attendDraws.js';
import { attendOn } from '../../runtime/verify/attendOn.js';
import {
  type Floats,
  halfBits,
  halfValues,
  kinds,
  largestOf,
  numbers,
  strayWrites,
  untouched,
  worstError,
} from '../../runtime/verify/draws.js';
import { asFloats, asHalfBits, runKernel } from '../../runtime/verify/run.js';
import { deviceNames, openDevice, targetOf } from './harness.js';
import { levelTable, type Operand, ScalarShare, scalarCases, scalarSetting } from './scalarCases.js';

const SEED = 20261201;
const operands = ['keys', 'values'] as const;
const steps = ['turn', 'scale', 'pack'] as const;

/** [token][width] of a prompt's middle, as the scheme codes it, in float64. */
function prepared(g: ScalarGeometry, operand: Operand, vectors: Float64Array, tokens: number): Float64Array {
  const { sinks, middle } = splitPrompt(g, tokens);
  const all = new Float64Array(middle * g.width);
  for (let head = 0; head < g.kvHeads; head++) {
    for (let token = 0; token < middle; token++) {
      const from = (head * tokens + sinks + token) * g.headDim;
      const x = vectors.slice(from, from + g.headDim);
      const { turned, unrotated, polar } = g[operand];
      const paired = unrotated ? unrotate(x, sinks + token, g.model.rope) : polar ? polarForm(x, g.model.rope) : x;
      const y = turned ? hadamard(x) : paired;
      all.set(y, token * g.width + head * g.headDim);
    }
  }
  return all;
}

/** The numbers of every block that shares a scale, with one of their places. */
function blocksOf(g: ScalarGeometry, { scaleTokens, scaleChannels }: ScalarGroups, middle: number) {
  const rowTokens = scaleTokens === 0 ? middle : scaleTokens;
  const blocks: { token: number; head: number; channel: number; places: number[] }[] = [];
  for (let token = 0; token < middle; token += rowTokens) {
    for (let first = 0; first < g.width; first += scaleChannels) {
      const places: number[] = [];
      for (let t = token; t < Math.min(token + rowTokens, middle); t++) {
        for (let c = first; c < first + scaleChannels; c++) places.push(t * g.width + c);
      }
      blocks.push({ token, head: Math.floor(first / g.headDim), channel: first % g.headDim, places });
    }
  }
  return blocks;
}

/** One step of f16 at a number: float32 may fall on the other side of the middle between two halves. */
const halfStep = (x: number) => Math.abs(x) * 2 ** -10 + 2 ** -24;

describe.each(deviceNames)('scalar codes on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(scalarCases)('$name', ({ scheme, model, g }) => {
    let kernels: LoadedKernels<unknown>;
    beforeAll(async () => {
      const entries = [...operands.flatMap((operand) => steps.map((step) => `${step}_${operand}`)), 'decompress'];
      kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)), entries);
    });

    const prompts = fc.record({
      tokens: fc.oneof(
        fc.constantFrom(...[0, 1, 15, 16, 17, 32, 33].map((middle) => g.scheme.sinks + middle + g.scheme.window)),
        fc.integer({ min: 1, max: 100 }),
      ),
      kind: fc.constantFrom(...kinds),
      seed: fc.nat({ max: 0xffff }),
    });

    describe.each(operands)('of %s', (operand) => {
      const groups = g[operand];
      const noun = operand === 'keys' ? 'key' : 'value';

      test('are those of the codec, under the scales of their blocks', async () => {
        await fc.assert(
          fc.asyncProperty(prompts, async ({ tokens, kind, seed }) => {
            const { sinks, middle, window } = splitPrompt(g, tokens);
            const vectors = halfBits(numbers({ kind, seed }, g.kvHeads * tokens, g.headDim));
            const layout = layoutSequence(g, { tokens, generated: 1 });
            const sequence = writeRecord(layout, 0, {
              sinkTokens: sinks,
              middleTokens: middle,
              streamTokens: 0,
              windowTokens: window,
              windowStart: 0,
              promptTokens: tokens,
            });
            const tables = buildTables(g, tokens, model.rope.invFreq);
            const sizes = { middleTokens: middle };
            const blank = new Uint8Array(layout.bytes).fill(untouched);
            const turned = await runKernel(kernels, `turn_${operand}`, sizes, {
              sequence,
              vectors,
              ...(groups.unrotated ? { tables } : {}),
              plain: { bytes: middle * g.width * 4 },
            });
            const x = prepared(g, operand, halfValues(vectors), tokens);
            const largest = largestOf(x);
            const plain = asFloats(turned.plain!).slice(0, x.length);
            expect(worstError(plain, x, x.length || 1).by).toBeLessThanOrEqual(2e-6);

            const scaled = await runKernel(kernels, `scale_${operand}`, sizes, { sequence, plain, cache: blank });
            const packed = await runKernel(kernels, `pack_${operand}`, sizes, {
              sequence,
              plain,
              tables,
              cache: scaled.cache!,
            });
            const own = layout.parts.filter(({ name }) => new RegExp(`^${noun}(Codes|Scales|Offsets)$`).test(name));
            expect(strayWrites(packed.cache!, own)).toEqual([]);
            const share = new ScalarShare(g, layout, packed.cache!);
            const { offset: offsetOf, scale: scaleOf, code: codeOf } = groups.codec.device;
            const levels = levelTable(groups.codec, groups.levelChannels);
            const values = share.values(operand);
            const zero = 3e-6 * largest;
            for (const { token, head, channel, places } of blocksOf(g, groups, middle)) {
              const { offset, scale } = share.block(operand, token, head, channel);
              const own = places.map((place) => x[place]!);
              const wanted = offsetOf?.(Math.min(...own), Math.max(...own)) ?? 0;
              const at = `token ${token}, head ${head}, channel ${channel}`;
              const farOffset = Math.abs(offset - wanted);
              expect(farOffset, `offset at ${at}`).toBeLessThanOrEqual(offsetOf ? halfStep(wanted) + zero : 0);
              const rest = own.map((number) => number - offset);
              const maxAbs = largestOf(rest);
              const sum = rest.reduce((total, y) => total + (maxAbs === 0 ? 0 : (y / maxAbs) ** 2), 0);
              const wantedScale = scaleOf(sum, maxAbs);
              const farScale = Math.abs(scale - wantedScale);
              expect(farScale, `scale at ${at}`).toBeLessThanOrEqual(halfStep(wantedScale) + zero);
            }
            // A half without a block, and the scales of a prompt without a middle, are zero.
            const blocks = middle === 0 ? 0 : g.width / groups.scaleChannels;
            const rowHalves = groups.scaleRowWords * 2;
            const rows = groups.scaleTokens === 0 ? 1 : Math.ceil(middle / groups.scaleTokens);
            for (let index = 0; index < rows * rowHalves; index++) {
              if (index % rowHalves >= blocks) expect(share.half(`${noun}Scales`, index)).toBe(0);
            }
            for (let place = 0; place < x.length; place++) {
              const token = Math.floor(place / g.width);
              const head = Math.floor((place % g.width) / g.headDim);
              const channel = place % g.headDim;
              const { offset, scale } = share.block(operand, token, head, channel);
              const error = (code: number) => Math.abs(offset + scale * values[code]! - x[place]!);
              const wanted = codeOf(scale > 0 ? (x[place]! - offset) / scale : 0, (i) => levels[i]!, groups.bits);
              const found = share.code(operand, token, head, channel);
              // Between two codes, either may be found.
              const slack = zero + 1e-5 * scale;
              expect(error(found), `${x[place]} at ${place}`).toBeLessThanOrEqual(error(wanted) + slack);
              // Where the scale is zero every code stands for the same number.
              if (scale === 0) expect(found, `code at ${place}`).toBe(wanted);
            }
          }),
          { numRuns: 12, seed: SEED },
        );
      });
    });

    test('decompress to every token in order', async () => {
      await fc.assert(
        fc.asyncProperty(attendDraws(g), async (draw) => {
          const [first] = draw.sequences;
          const { cache, records, tables, sequences } = scalarSetting(g, { ...draw, sequences: [first!], queries: 1 });
          const { lengths, decoded } = sequences[0]!;
          const { tokens } = decoded.keys;
          if (tokens === 0) return;
          const output = { bytes: tokens * g.width * 2 };
          const contents = { sequence: records, cache, tables, keys: output, values: output };
          const outputs = await runKernel(kernels, 'decompress', { tokens }, contents);
          for (const operand of operands) {
            const actual = halfValues(asHalfBits(outputs[operand]!));
            const exact = decoded[operand].data;
            const absolute = 1e-5 * largestOf(exact);
            for (let i = 0; i < exact.length; i++) {
              const token = Math.floor(i / g.headDim) % tokens;
              const isExact = token < lengths.sinkTokens || token >= tokens - lengths.windowTokens;
              const clamped = Math.min(Math.max(exact[i]!, -65504), 65504);
              // Half a step of f16 on top of the float32 error; none where tokens are only copied.
              const slack = isExact ? 0 : absolute + Math.abs(clamped) * 2 ** -11 + 2 ** -24;
              if (!(Math.abs(actual[i]! - clamped) <= slack)) {
                expect.fail(`${operand}[${i}] (token ${token}): ${actual[i]}, expected ${clamped} within ${slack}`);
              }
            }
          }
        }),
        { numRuns: 12, seed: SEED },
      );
    });
  });
});

/** Largest error of a sequence's output, over its largest magnitude: all schedules are in float32. */
const bar = 1e-5;

describe.each(deviceNames)('attention over scalar codes on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  });
  afterAll(() => device?.close());

  describe.each(scalarCases)('$name', ({ scheme, model, g }) => {
    const rowLength = g.heads * g.headDim;
    let kernels: LoadedKernels;
    beforeAll(async () => {
      const entries = device.target === 'wgsl' ? ['attend', 'attend_merge'] : ['attend'];
      kernels = await LoadedKernels.load(device, await generate(scheme, model, targetOf(device)), entries);
    });

    test('agrees with float64 attention over the decoded tokens', async () => {
      await fc.assert(
        fc.asyncProperty(attendDraws(g), async (draw) => {
          const setting = scalarSetting(g, draw);
          const { output, counters } = await attendOn(kernels, draw, setting);
          const length = draw.queries * rowLength;
          for (const index of draw.sequences.keys()) {
            const row = (values: Floats) => values.slice(index * length, (index + 1) * length);
            expect(worstError(row(output), row(setting.expected), length).by).toBeLessThanOrEqual(bar);
          }
          expect([...counters].every((count) => count === 0)).toBe(true);
        }),
        { numRuns: 14, seed: SEED },
      );
    });
  });
});

test.each(scalarCases)('WGSL attends to $name in float32, whatever the target has', async ({ scheme, model }) => {
  /** The text without what names the target: the first lines, what is enabled, the values that subgroups add. */
  const bodyOf = async (has: boolean) => {
    const target = { language: 'wgsl', f16: has, subgroups: has, workgroupBytes: 16384 } as const;
    const text = (await generate(scheme, model, target)).files.get('attend.wgsl')!;
    expect(text.includes('enable f16;\nenable subgroups;')).toBe(has);
    return text
      .split('\n')
      .filter((line) => !/^\/\/ Stage|^enable|@builtin\(subgroup/.test(line))
      .join('\n')
      .replace(/\n{2,}/g, '\n');
  };
  expect(await bodyOf(true)).toBe(await bodyOf(false));
});
