import { defaultTargets, type GeneratedKernels, generate } from '../../codegen/generate.js';
import { KvforgeError } from '../../dsl/errors.js';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import type { ModelShape } from '../../dsl/model.js';
import { maxPositionsLimit } from '../../dsl/models/config.js';
import type { Scheme } from '../../dsl/scheme.js';
import type { Device } from '../device.js';
import { LoadedKernels } from '../kernels.js';
import { appendCase } from './appendCase.js';
import { type CaseDraw, drawCase, fitsSlowly, wideWidth } from './caseDraws.js';
import { attendCase, decompressCase } from './codeCases.js';
import type { Bench } from './held.js';
import { type Check, Judge } from './judge.js';
import { latentCase } from './latentCase.js';
import { prefillCase } from './prefillCase.js';
import { promptTaps, Tap } from './tap.js';

export interface VerifyOptions {
  readonly cases: number;
  /** Of the first case; every next case has the next seed. */
  readonly seed: number;
  /** No case but the first is begun after this time; the result says how many were made. No limit if left out. */
  readonly seconds?: number;
  readonly onProgress?: (line: string) => void;
  /** Texts to verify; generated for the device's default target if left out. */
  readonly generated?: GeneratedKernels;
}

/** A check that failed. */
export interface VerifyFailure extends Check {
  readonly case: number;
  /** With one case, this seed gives the same check again. */
  readonly seed: number;
}

export interface VerifyResult {
  readonly cases: number;
  /** Cases with at least one failure. */
  readonly failed: number;
  /** Largest error of an attention output, over its largest magnitude. */
  readonly maxError: number;
  /** Checks that were not made. */
  readonly skipped: number;
  /** Why, with their number. */
  readonly notes: readonly string[];
  readonly seed: number;
  readonly failures: readonly VerifyFailure[];
}

export type VerifyScheme = typeof verifyScheme;

/** Prefills of a wide model in one run: a software device takes minutes for each. A case on its own is always run. */
const wideAllowance = (cases: number) => (cases === 1 ? 1 : Math.min(2, Math.floor(cases / 50)));
/** Faults that are the kernels'; any other ends the run. */
const kernelFaults: readonly string[] = ['kernel-fault', 'does-not-fit', 'check-failed'];

/**
 * Holds the kernels of a scheme to the float64 reference on drawn cases: attention, decompression, appended tokens and
 * whole prompts. A failure is data; a case depends on its seed alone.
 *
 * @throws KvforgeError `device-lost`, and what generating or compiling the kernels throws
 * @example
 * const { failed } = await verifyScheme(device, shard, presetModel('smollm2-135m'), { cases: 200, seed: 1 });
 */
export async function verifyScheme(
  device: Device,
  scheme: Scheme,
  model: ModelShape,
  { cases, seed, seconds = Number.POSITIVE_INFINITY, onProgress, generated }: VerifyOptions,
): Promise<VerifyResult> {
  const texts = generated ?? (await generate(scheme, model, defaultTargets[device.target]));
  const isWide = fitsSlowly(texts.geometry);
  const tap = new Tap(device, { bindings: promptTaps, apart: isWide });
  const kernels = await LoadedKernels.load(tap, withRoom(texts));
  onProgress?.(`${texts.manifest.kernels.length} kernels compiled`);
  const { target } = texts;
  // Attention over latents, or tile-rotated keys, multiplies halves, or is float32, as its schedule says.
  const attend = texts.manifest.kernels.find(({ entry }) => entry === 'attend');
  const plain = ['latent', 'tilt'].includes(texts.geometry.family) && attend?.tunables.products !== 1;
  const halves = plain ? false : target.language === 'cuda' ? target.tensorCores : target.f16;
  const bar = halves ? 2e-3 : 1e-5;

  const failures: VerifyFailure[] = [];
  const skips = new Map<string, number>();
  const skip = (reason: string) => skips.set(reason, (skips.get(reason) ?? 0) + 1);
  const allowance = wideAllowance(cases);
  const started = performance.now();
  let [made, failed, maxError, wide] = [0, 0, 0, 0];
  for (let index = 0; index < cases; index++) {
    if (made > 0 && performance.now() - started > seconds * 1000) break;
    made++;
    // Seeds end at 2^32 - 1, and go on from 0.
    const caseSeed = (seed + index) >>> 0;
    const drawn = drawCase(kernels.geometry, caseSeed);
    if (drawn.kind === 'prefill' && isWide && ++wide > allowance) {
      skip(`prefill of a prompt: with a width above ${wideWidth} one in 50 cases is made, two in a run at most`);
      continue;
    }
    const judge = new Judge();
    await judgeCase(kernels, tap, drawn, { judge, bar, halves }).catch((error: unknown) => {
      throw withCase(error, `case ${index} (${drawn.kind}, seed ${caseSeed})`, failures.at(-1));
    });
    failures.push(...judge.failures.map((failure) => ({ case: index, seed: caseSeed, ...failure })));
    if (judge.failures.length > 0) failed++;
    for (const reason of judge.skipped) skip(reason);
    maxError = Math.max(maxError, judge.maxError);
    onProgress?.(`case ${index + 1} of ${cases} (${drawn.kind}): ${failed} failed so far`);
  }
  return {
    cases: made,
    failed,
    maxError,
    skipped: [...skips.values()].reduce((sum, count) => sum + count, 0),
    notes: [...skips].map(([reason, count]) => `${count} not made: ${reason}`),
    seed,
    failures,
  };
}

/**
 * Draws know nothing of the model's context, which no kernel depends on: a cache of a model with a short one would
 * refuse them, and its kernels would go unjudged.
 */
function withRoom(texts: GeneratedKernels): GeneratedKernels {
  const { geometry } = texts;
  return { ...texts, geometry: { ...geometry, model: { ...geometry.model, maxPositions: maxPositionsLimit } } };
}

/** A lost device with the case it was lost in, and the failure before it, which is often the cause. */
function withCase(error: unknown, place: string, before: VerifyFailure | undefined): unknown {
  if (!(error instanceof KvforgeError)) return error;
  const after = before ? ` (after ${before.what}, seed ${before.seed})` : '';
  const { at, received, ...rest } = error.parts;
  const parts = { ...rest, at: `${at}, in ${place}`, received: received + after };
  return new KvforgeError(error.code, parts, { cause: error });
}

async function judgeCase(kernels: LoadedKernels, tap: Tap, drawn: CaseDraw, bench: Bench): Promise<void> {
  try {
    switch (drawn.kind) {
      case 'latent':
        return await latentCase(kernels, kernels.geometry as LatentGeometry, drawn.draw, bench);
      case 'attend':
        return await attendCase(kernels, drawn.draw, bench);
      case 'decompress':
        return await decompressCase(kernels, drawn.draw, bench);
      case 'append':
        return await appendCase(kernels, drawn.draw, bench);
      case 'prefill':
        return await prefillCase(kernels, tap, drawn.draw, bench);
    }
  } catch (error) {
    if (!(error instanceof KvforgeError) || !kernelFaults.includes(error.code)) throw error;
    bench.judge.check(`${drawn.kind}: ${error.message}`, Number.POSITIVE_INFINITY, 0);
  }
}
