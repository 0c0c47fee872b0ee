import type { LoadedKernels } from '../../../runtime/kernels.js';
import { halfBits, numbers, strayWrites, untouched } from '../../../runtime/verify/draws.js';
import type { Judge } from '../../../runtime/verify/judge.js';
import { runKernel } from '../../../runtime/verify/run.js';
import { lowRankOf } from '../../lowRank.js';
import { promptSetting } from '../../stages/harness.js';

/** Sinks and window of prompts that fill both, and of one that fills neither. */
export async function driveCopy(kernels: LoadedKernels, judge: Judge): Promise<void> {
  const g = lowRankOf(kernels.geometry);
  for (const tokens of [1, g.scheme.sinks + g.scheme.window + 20]) {
    const { layout, record, sinks, window } = promptSetting(g, tokens);
    const input = {
      Keys: halfBits(numbers({ kind: 'normal', seed: 14 }, g.kvHeads * tokens, g.headDim)),
      Values: halfBits(numbers({ kind: 'normal', seed: 15 }, g.kvHeads * tokens, g.headDim)),
    };
    const outputs = await runKernel(
      kernels,
      'copy_exact',
      {},
      { sequence: record, keys: input.Keys, values: input.Values, cache: new Uint8Array(layout.bytes).fill(untouched) },
    );
    const cache = outputs.cache!;
    const written: { offset: number; bytes: number }[] = [];
    for (const [tensor, bits] of Object.entries(input)) {
      for (const [part, first, count] of [
        [`sink${tensor}`, 0, sinks],
        [`window${tensor}`, tokens - window, window],
      ] as const) {
        const { offset } = layout.parts.find(({ name }) => name === part)!;
        const expected = new Uint16Array(count * g.width);
        for (let token = 0; token < count; token++) {
          for (let head = 0; head < g.kvHeads; head++) {
            const start = (head * tokens + first + token) * g.headDim;
            expected.set(bits.subarray(start, start + g.headDim), token * g.width + head * g.headDim);
          }
        }
        const bytes = new Uint8Array(expected.buffer);
        const wrong = bytes.findIndex((byte, i) => byte !== cache[offset + i]);
        judge.check(`${tokens} tokens, ${part}, byte ${wrong}`, wrong < 0 ? 0 : 1, 0);
        written.push({ offset, bytes: bytes.length });
      }
    }
    judge.check(`${tokens} tokens: writes outside of them`, strayWrites(cache, written).length, 0);
  }
}
