import { layoutSequence, recordWords } from '../../../codegen/plan/layout.js';
import type { LoadedKernels } from '../../../runtime/kernels.js';
import { readRecord, type SequenceLengths, writeRecord } from '../../../runtime/record.js';
import { readField } from '../../../runtime/reference/index.js';
import { buildTables } from '../../../runtime/tables.js';
import { codedErrors } from '../../../runtime/verify/checkStream.js';
import { halfBits, halfValues, numbers, untouched } from '../../../runtime/verify/draws.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { asHalfBits, asWords, runKernel } from '../../../runtime/verify/run.js';
import { streamValues } from '../../../runtime/verify/streamValues.js';

const CAPACITY = 3;

/** Four sequences at once: a window with room, two full ones whose oldest token is coded, and a stream with no room. */
export async function driveAppend(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = kernels.geometry;
  const { window, sinks } = g.scheme;
  const states = [
    { window: 1, start: 0, stream: 0 },
    { window, start: window - 1, stream: 1 },
    { window, start: 1, stream: 0 },
    { window, start: 0, stream: CAPACITY },
  ];
  const layout = layoutSequence(g, { tokens: sinks + window + 2, generated: CAPACITY });
  const cache = new Uint8Array(layout.bytes * states.length).fill(untouched);
  const records = new Uint32Array(states.length * recordWords);
  const draw = (rows: number, seed: number) => halfBits(numbers({ kind: 'normal', seed }, rows, g.width));
  const old = { Keys: draw(window * states.length, 16), Values: draw(window * states.length, 17) };
  const fresh = { Keys: draw(states.length, 18), Values: draw(states.length, 19) };
  const row = (bits: Uint16Array, index: number) => bits.slice(index * g.width, (index + 1) * g.width);
  const offsetOf = (sequence: number, name: string) =>
    sequence * layout.bytes + layout.parts.find((part) => part.name === name)!.offset;
  const rowBytes = g.width * 2;
  for (const [sequence, state] of states.entries()) {
    const lengths: SequenceLengths = {
      sinkTokens: sinks,
      middleTokens: 2,
      streamTokens: state.stream,
      windowTokens: state.window,
      windowStart: state.start,
      promptTokens: 9,
    };
    records.set(writeRecord(layout, sequence * layout.bytes, lengths), sequence * recordWords);
    for (const tensor of ['Keys', 'Values'] as const) {
      const bits = old[tensor].slice(sequence * window * g.width, (sequence + 1) * window * g.width);
      cache.set(new Uint8Array(bits.buffer), offsetOf(sequence, `window${tensor}`));
    }
  }
  const outputs = await runKernel(
    kernels,
    'append_token',
    { sequences: states.length },
    {
      sequences: records,
      new_keys: fresh.Keys,
      new_values: fresh.Values,
      tables: buildTables(g, 64, g.model.rope.invFreq),
      cache,
    },
  );
  const after = outputs.cache!;
  const expected = cache.slice();
  for (const [sequence, state] of states.entries()) {
    const full = state.window === window;
    const refused = full && state.stream === CAPACITY;
    const moved = full && !refused;
    const lengths = readRecord(asWords(outputs.sequences!).slice(sequence * recordWords, (sequence + 1) * recordWords));
    const wanted = {
      sinkTokens: sinks,
      middleTokens: 2,
      streamTokens: state.stream + (moved ? 1 : 0),
      windowTokens: full ? window : state.window + 1,
      windowStart: moved ? (state.start + 1) % window : state.start,
      promptTokens: 9,
      refusedTokens: refused ? 1 : 0,
    };
    for (const [name, length] of Object.entries(wanted)) {
      const actual = lengths[name as keyof typeof wanted] ?? Number.NaN;
      judge.check(`sequence ${sequence}, ${name}`, Math.abs(actual - length), 0);
    }
    if (refused) continue;
    const slot = (state.start + state.window) % window;
    for (const tensor of ['Keys', 'Values'] as const) {
      const singular = tensor.slice(0, -1);
      const place = offsetOf(sequence, `window${tensor}`) + slot * rowBytes;
      expected.set(new Uint8Array(row(fresh[tensor], sequence).buffer), place);
      if (!full) continue;
      const where = `sequence ${sequence}, stream ${singular}`;
      const codesAt = offsetOf(sequence, `stream${singular}Codes`) + state.stream * g.kvHeads * g.streamWords * 4;
      const normsAt = offsetOf(sequence, `stream${singular}Norms`) + state.stream * g.normWords * 4;
      const codes = after.slice(codesAt, codesAt + g.kvHeads * g.streamWords * 4);
      const normBytes = after.slice(normsAt, normsAt + g.normWords * 4);
      const norms = halfValues(asHalfBits(normBytes));
      const oldest = halfValues(row(old[tensor], sequence * window + slot));
      for (let head = 0; head < g.kvHeads; head++) {
        const fields = codes.slice(head * g.streamWords * 4, (head + 1) * g.streamWords * 4);
        const field = (i: number) => readField(fields, { offset: i * g.streamBits, width: g.streamBits });
        const coded = { codes: Array.from({ length: g.headDim }, (_, i) => field(i)), norm: norms[head]! };
        const exact = oldest.slice(head * g.headDim, (head + 1) * g.headDim);
        const { scale, code } = codedErrors(g, coded, exact, streamValues(g));
        judge.check(`${where}, head ${head}: scale, in f16 steps`, scale.error, scale.bar);
        judge.check(`${where}, head ${head}: code of channel ${code.channel}`, code.error, 1e-4);
        for (let bit = g.headDim * g.streamBits; bit < fields.length * 8; bit++) {
          judge.check(`${where}, head ${head}: spare bit ${bit}`, readField(fields, { offset: bit, width: 1 }), 0);
        }
      }
      if (g.kvHeads % 2 === 1) judge.check(`${where}: spare half of the norms`, norms[g.kvHeads]!, 0);
      expected.set(codes, codesAt);
      expected.set(normBytes, normsAt);
    }
  }
  const stray = after.findIndex((byte, i) => byte !== expected[i]);
  judge.check(`byte ${stray} that no token came to or left`, stray < 0 ? 0 : 1, 0);
}
