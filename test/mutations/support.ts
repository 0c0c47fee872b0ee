import { type GeneratedKernels, generate } from '../../codegen/generate.js';
import type { Target } from '../../dsl/stage.js';
import { makeCase } from '../stages/harness.js';

/** With edges: width 48 fills no tile of 32, heads and slots are odd, codes of 3 bits cross words. */
const small = {
  heads: 6,
  kvHeads: 3,
  headDim: 16,
  channels: 4,
  entries: 16,
  sinks: 2,
  window: 3,
  streamBits: 3,
} as const;

const cases = {
  /** Every channel rotated as half pairs, fixed widths, nothing else. */
  plain: makeCase({ ...small, rank: 32, bits: [6, 2], group: 16 }),
  /** All that a scheme or a model may ask for beside. */
  full: makeCase({
    ...small,
    rank: 48,
    bits: { budget: 192 },
    rotaryDim: 8,
    pairing: 'interleaved',
    scoreCap: 5,
    weight: 'queries',
    unbiased: true,
  }),
} as const;

/** `anyRank` is the plain one with the schedules of the basis that CUDA takes where the fast ones do not fit. */
export type Shape = keyof typeof cases | 'anyRank';

export type Shapes = Readonly<Record<Shape, GeneratedKernels>>;

export function generateSmall(target: Target, shape: Shape = 'plain'): Promise<GeneratedKernels> {
  const { scheme, model } = cases[shape === 'anyRank' ? 'plain' : shape];
  const choice = shape === 'anyRank' ? { basis: { choleskyQr: 0, sharedMatrix: 0 } } : {};
  return generate(scheme, model, target, choice);
}

export async function generateShapes(target: Target): Promise<Shapes> {
  const [plain, full] = await Promise.all([generateSmall(target, 'plain'), generateSmall(target, 'full')]);
  return { plain, full, anyRank: target.language === 'cuda' ? await generateSmall(target, 'anyRank') : plain };
}
