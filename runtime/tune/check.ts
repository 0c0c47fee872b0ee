import type { GeneratedKernels } from '../../codegen/generate.js';
import type { Geometry } from '../../dsl/geometry.js';
import type { Device } from '../device.js';
import { LoadedKernels } from '../kernels.js';
import { type AttendDraw, type AttendSetting, attendSetting, type SequenceDraw } from '../verify/attendDraws.js';
import { attendOn } from '../verify/attendOn.js';
import { decompressCase } from '../verify/codeCases.js';
import { checkAttended } from '../verify/held.js';
import { Judge } from '../verify/judge.js';
import { prefillCase } from '../verify/prefillCase.js';
import { promptTaps, Tap } from '../verify/tap.js';

/** Middle tokens of the longest sequence: several tiles of any schedule, and no whole number of them. */
const longMiddle = 300;
/** Middle tokens of the prompt that its compression and decoding are checked on: float64 takes seconds for a wide model. */
const promptMiddle = 80;

/** A sequence with all of its segments, its window turned. */
function fullDraw({ scheme: { sinks, window } }: Geometry, middle: number): SequenceDraw {
  return {
    sinks,
    middle,
    stream: 40,
    window,
    windowStart: Math.floor(window / 2),
    spare: 1,
    splits: 3,
    slidingWindow: 0,
    reach: 10,
    aligned: false,
    magnitude: 1,
  };
}

function decompressDraw(g: Geometry): AttendDraw {
  return { sequences: [fullDraw(g, promptMiddle)], queries: 1, seed: 1 };
}

function attendDraws(g: Geometry): readonly AttendDraw[] {
  const full = fullDraw(g, longMiddle);
  const { window } = g.scheme;
  const short = {
    ...full,
    middle: 17,
    stream: 0,
    window: Math.min(5, window),
    windowStart: 0,
    splits: 1,
    aligned: true,
  };
  // More splits than there are tiles, a last split with a part of a tile, and one split alone.
  return [
    { sequences: [full, { ...short, reach: 40 }], queries: 1, seed: 1 },
    { sequences: [{ ...full, middle: 140, splits: 64 }], queries: 1, seed: 2 },
    { sequences: [{ ...short, slidingWindow: 16 }], queries: 2, seed: 3 },
  ];
}

/** What a check found. */
export interface Checked {
  /** What is wrong, worst first; nothing for kernels that are right. */
  readonly faults: readonly string[];
  /** Largest error of an attention output, over its largest magnitude: tunables may trade accuracy for time. */
  readonly error: number | undefined;
}

/**
 * Holds a stage's kernels to the float64 reference on the same codes at small shapes, before they are timed. What it costs
 * in float64 is paid once for all candidates, where they read the same.
 */
export class CandidateCheck {
  readonly #settings = new Map<AttendDraw, AttendSetting>();

  async run(device: Device, stage: string, texts: GeneratedKernels): Promise<Checked> {
    const { geometry, target, manifest } = texts;
    const halves = target.language === 'cuda' ? target.tensorCores : target.f16;
    const bench = { judge: new Judge(), bar: halves ? 2e-3 : 1e-5, halves };
    const own = manifest.kernels.filter((kernel) => kernel.stage === stage).map(({ entry }) => entry);
    if (stage === 'attend') {
      const kernels = await LoadedKernels.load(device, texts, own);
      for (const draw of this.#draws(geometry)) await this.#attend(kernels, draw, bench);
    } else if (stage === 'decompress') {
      const kernels = await LoadedKernels.load(device, texts, own);
      await decompressCase(kernels, decompressDraw(geometry), bench);
    } else {
      const tap = new Tap(device, { bindings: promptTaps, apart: false });
      const kernels = await LoadedKernels.load(tap, texts);
      const { sinks, window } = geometry.scheme;
      const query = { queries: 1, splits: 3, reach: 1, aligned: false };
      const tokens = sinks + window + promptMiddle;
      await prefillCase(kernels, tap, { tokens, keys: 'normal', values: 'normal', seed: 1, query }, bench);
    }
    const faults = [...bench.judge.failures]
      .sort((a, b) => b.error / b.bar - a.error / a.bar)
      .map(({ what, error, bar }) => `${what}: error ${error.toExponential(1)}, at most ${bar.toExponential(1)}`);
    return { faults, error: stage === 'decompress' ? undefined : bench.judge.maxError };
  }

  #draws(g: Geometry): readonly AttendDraw[] {
    if (this.#settings.size === 0) for (const draw of attendDraws(g)) this.#settings.set(draw, attendSetting(g, draw));
    return [...this.#settings.keys()];
  }

  async #attend(
    kernels: LoadedKernels,
    draw: AttendDraw,
    bench: { readonly judge: Judge; readonly bar: number; readonly halves: boolean },
  ): Promise<void> {
    const setting = this.#settings.get(draw)!;
    const { output, counters } = await attendOn(kernels, draw, setting);
    const where = (sequence: number) => {
      const { middle, splits, reach } = draw.sequences[sequence]!;
      return `${middle} middle tokens, ${splits} splits, scores to ${reach}`;
    };
    checkAttended(kernels.geometry, { output, expected: setting.expected, queries: draw.queries }, where, bench);
    const left = counters.filter((count) => count !== 0).length;
    bench.judge.check('attend: counters that are not zero again', left, 0);
  }
}
