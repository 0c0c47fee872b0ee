import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { layoutSequence } from '../../codegen/plan/layout.js';
import type { Device, DeviceBuffer } from '../../runtime/device.js';
import type { LoadedKernels } from '../../runtime/kernels.js';
import { readRecord, type SequenceLengths, writeRecord } from '../../runtime/record.js';
import { readField } from '../../runtime/reference/index.js';
import { buildTables } from '../../runtime/tables.js';
import { codedErrors } from '../../runtime/verify/checkStream.js';
import { halfBits, halfValues, kinds, numbers, untouched } from '../../runtime/verify/draws.js';
import { streamValues } from '../../runtime/verify/streamValues.js';
import {
  asHalfBits,
  asWords,
  cases,
  deviceNames,
  geometry,
  load,
  openDevice,
  partBytes,
  runKernel,
} from './harness.js';

const CAPACITY = 3;

describe.each(deviceNames)('append on %s', (deviceName) => {
  let device: Device;
  beforeAll(async () => {
    device = await openDevice(deviceName);
  }, 60_000);
  afterAll(() => device?.close());

  describe.each(cases)('$name, $scheme.stream.bits bits', (drawnCase) => {
    const g = geometry(drawnCase);
    const { window } = g.scheme;
    const values = streamValues(g);
    const tables = buildTables(g, 256, g.model.rope.invFreq);
    let kernels: LoadedKernels;
    beforeAll(async () => {
      kernels = await load(device, drawnCase, ['append_token', 'decompress']);
    }, 60_000);

    /** Checks one coded vector against the f16 numbers it came from: its norm, then every code. */
    function expectCoded(row: Uint8Array, norm: number, exact: Float64Array): void {
      const codes = Array.from({ length: g.headDim }, (_, channel) =>
        readField(row, { offset: channel * g.streamBits, width: g.streamBits }),
      );
      const { scale, code } = codedErrors(g, { codes, norm }, exact, values);
      expect(scale.error).toBeLessThanOrEqual(scale.bar);
      expect(code.error, `channel ${code.channel}`).toBeLessThanOrEqual(1e-4);
      const used = g.headDim * g.streamBits;
      for (let bit = used; bit < row.length * 8; bit++) expect(readField(row, { offset: bit, width: 1 })).toBe(0);
    }

    const states = fc.record({
      window: fc.constantFrom(0, window - 1, window, window, window),
      start: fc.nat({ max: window - 1 }),
      stream: fc.constantFrom(0, CAPACITY - 1, CAPACITY),
    });

    test('fills the window, then codes the oldest token, then refuses', async () => {
      await fc.assert(
        fc.asyncProperty(
          fc.array(states, { minLength: 1, maxLength: 3 }),
          fc.constantFrom(...kinds),
          fc.nat({ max: 0xffff }),
          async (drawn, kind, seed) => {
            const layout = layoutSequence(g, { tokens: g.scheme.sinks + window + 2, generated: CAPACITY });
            const count = drawn.length;
            const cache = new Uint8Array(layout.bytes * count).fill(untouched);
            const records = new Uint32Array(count * 64);
            const drawHalves = (rows: number, salt: number) =>
              halfBits(numbers({ kind, seed: seed + salt }, rows, g.width));
            const place = (bytes: Uint8Array, sequence: number, name: string, row: number, data: Uint8Array) => {
              const part = layout.parts.find((candidate) => candidate.name === name)!;
              bytes.set(data, sequence * layout.bytes + part.offset + row * data.length);
            };
            const rowBytes = (bits: Uint16Array, row: number) =>
              new Uint8Array(bits.slice(row * g.width, (row + 1) * g.width).buffer);
            const exact = { Keys: drawHalves(window * count, 1), Values: drawHalves(window * count, 2) };
            const fresh = { Keys: drawHalves(count, 3), Values: drawHalves(count, 4) };
            for (const [sequence, state] of drawn.entries()) {
              const lengths: SequenceLengths = {
                sinkTokens: g.scheme.sinks,
                middleTokens: 2,
                streamTokens: state.stream,
                windowTokens: state.window,
                windowStart: state.start,
                promptTokens: 9,
              };
              records.set(writeRecord(layout, sequence * layout.bytes, lengths), sequence * 64);
              for (const tensor of ['Keys', 'Values'] as const) {
                for (let slot = 0; slot < window; slot++) {
                  place(cache, sequence, `window${tensor}`, slot, rowBytes(exact[tensor], sequence * window + slot));
                }
              }
            }
            const outputs = await runKernel(
              kernels,
              'append_token',
              { sequences: count },
              { sequences: records, new_keys: fresh.Keys, new_values: fresh.Values, tables, cache },
            );
            const after = outputs.cache!;
            const expected = cache.slice();
            for (const [sequence, state] of drawn.entries()) {
              const full = state.window === window;
              const refused = full && state.stream === CAPACITY;
              const slot = (state.start + state.window) % window;
              const words = asWords(outputs.sequences!).slice(sequence * 64, (sequence + 1) * 64);
              expect(readRecord(words)).toEqual({
                sinkTokens: g.scheme.sinks,
                middleTokens: 2,
                streamTokens: state.stream + (full && !refused ? 1 : 0),
                windowTokens: full ? window : state.window + 1,
                windowStart: full && !refused ? (state.start + 1) % window : state.start,
                promptTokens: 9,
                refusedTokens: refused ? 1 : 0,
                evictedTokens: 0,
              });
              if (refused) continue;
              const share = after.slice(sequence * layout.bytes, (sequence + 1) * layout.bytes);
              for (const [tensor, singular] of [
                ['Keys', 'Key'],
                ['Values', 'Value'],
              ] as const) {
                place(expected, sequence, `window${tensor}`, slot, rowBytes(fresh[tensor], sequence));
                if (!full) continue;
                const codesPart = `stream${singular}Codes`;
                const normsPart = `stream${singular}Norms`;
                const rowSize = g.kvHeads * g.streamWords * 4;
                const codes = partBytes(layout, share, codesPart).slice(
                  state.stream * rowSize,
                  (state.stream + 1) * rowSize,
                );
                const normBytes = partBytes(layout, share, normsPart).slice(
                  state.stream * g.normWords * 4,
                  (state.stream + 1) * g.normWords * 4,
                );
                const norms = halfValues(asHalfBits(normBytes));
                const oldest = halfValues(
                  exact[tensor].subarray(
                    (sequence * window + slot) * g.width,
                    (sequence * window + slot + 1) * g.width,
                  ),
                );
                for (let head = 0; head < g.kvHeads; head++) {
                  const row = codes.subarray(head * g.streamWords * 4, (head + 1) * g.streamWords * 4);
                  expectCoded(row, norms[head]!, oldest.slice(head * g.headDim, (head + 1) * g.headDim));
                }
                if (g.kvHeads % 2 === 1) expect(norms[g.kvHeads]).toBe(0);
                place(expected, sequence, codesPart, state.stream, codes);
                place(expected, sequence, normsPart, state.stream, normBytes);
              }
            }
            // Beside the slot and the stream's next row, which are checked above, nothing changed.
            expect(Buffer.compare(after, expected)).toBe(0);
          },
        ),
        { numRuns: 16 },
      );
    });

    test('a stream of 200 tokens decodes within the error bound, and a full one refuses the rest', async () => {
      const appended = 200;
      const refused = 7;
      const capacity = appended - window - refused;
      const layout = layoutSequence(g, { tokens: 0, generated: capacity });
      const record = writeRecord(layout, 0, {
        sinkTokens: 0,
        middleTokens: 0,
        streamTokens: 0,
        windowTokens: 0,
        windowStart: 0,
        promptTokens: 0,
      });
      const bits = {
        keys: halfBits(numbers({ kind: 'normal', seed: 5 }, appended, g.width)),
        values: halfBits(numbers({ kind: 'normal', seed: 6 }, appended, g.width)),
      };
      const tokens = capacity + window;
      const outputBytes = tokens * g.width * 2;
      const buffers: DeviceBuffer[] = [];
      const make = (label: string, data: ArrayBufferView | number) => {
        const buffer = device.allocate(label, typeof data === 'number' ? data : data.byteLength);
        if (typeof data !== 'number') device.write(buffer, data);
        buffers.push(buffer);
        return { buffer };
      };
      const sequences = make('sequences', record);
      const cache = make('cache', layout.bytes);
      const angles = make('tables', tables);
      const launches = Array.from({ length: appended }, (_, token) =>
        kernels.launch(
          'append_token',
          { sequences: 1 },
          {
            sequences,
            new_keys: make('new_keys', bits.keys.slice(token * g.width, (token + 1) * g.width)),
            new_values: make('new_values', bits.values.slice(token * g.width, (token + 1) * g.width)),
            tables: angles,
            cache,
          },
        ),
      );
      const keys = make('keys', outputBytes);
      const values = make('values', outputBytes);
      launches.push(
        kernels.launch('decompress', { tokens }, { sequence: sequences, cache, tables: angles, keys, values }),
      );
      try {
        await device.run(launches);
        const words = asWords((await device.read(sequences.buffer)).slice());
        expect(readRecord(words)).toMatchObject({
          streamTokens: capacity,
          windowTokens: window,
          windowStart: capacity % window,
          refusedTokens: refused,
        });
        // Of unit vectors (Panter and Dite 1951), and 2^-22 for the f16 of the norm and of the decoded channels.
        const bound = ((Math.sqrt(3) * Math.PI) / 2) * 4 ** -g.streamBits + 2 ** -22;
        for (const name of ['keys', 'values'] as const) {
          const buffer = name === 'keys' ? keys.buffer : values.buffer;
          const decoded = halfValues(asHalfBits((await device.read(buffer)).slice()));
          const original = halfValues(bits[name]);
          let error = 0;
          for (let token = 0; token < tokens; token++) {
            for (let head = 0; head < g.kvHeads; head++) {
              const at = (head * tokens + token) * g.headDim;
              const from = token * g.width + head * g.headDim;
              let squared = 0;
              let size = 0;
              for (let i = 0; i < g.headDim; i++) {
                squared += (decoded[at + i]! - original[from + i]!) ** 2;
                size += original[from + i]! ** 2;
              }
              if (token >= capacity) expect(squared).toBe(0);
              else error += squared / size;
            }
          }
          expect(error / (capacity * g.kvHeads)).toBeLessThanOrEqual(bound);
        }
      } finally {
        for (const buffer of buffers) buffer.release();
      }
    });
  });
});
