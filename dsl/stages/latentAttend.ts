import type { LatentGeometry } from '../latentGeometry.js';
import { defineStage, type KernelPlan, oneOf, type Target, type Tunable, usesTensorCores } from '../stage.js';
import { type AttendSchedule, scoreConstants, workItemWords } from './attendPlan.js';
import { cacheRead, reads, tables, writes } from './bindings.js';
import { latentProducts, unfitForProducts } from './latentAttendMma.js';
import { latentReadFunctions } from './latentEncode.js';

/** Numbers of one partial result: of each head its unnormalised output, maximum (base-2 exponent) and weight sum. */
export function latentPartialWords(g: LatentGeometry): number {
  return g.headsPerBlock * (g.latentDim + 2);
}

/** Most threads that share one dot product; more would only move work from the sums to their merging. */
const scoreSlicesLimit = 16;

type PlainSpace = Readonly<Record<'tileTokens', Tunable>>;
/** `products` 1 is the schedule on tensor cores, 0 the plain one; each has a tile of its own. */
type ProductSpace = Readonly<Record<'products' | 'productTokens' | 'tileTokens', Tunable>>;
type Space = PlainSpace | ProductSpace;

/**
 * Attention with absorbed projections: every head's query has the channels of a token, and its output those of a latent,
 * which the caller multiplies with the head's own projection.
 */
export const latentAttendStage = defineStage<Space, LatentGeometry>({
  name: 'attend',
  summary: 'Attention over all segments, split along tokens, merged by log-sum-exp.',
  tunables: (target) => {
    const tileTokens = oneOf(8, 4);
    return usesTensorCores(target)
      ? { products: oneOf(1, 0), productTokens: oneOf(64, 32), tileTokens }
      : { tileTokens };
  },
  constraints: [
    (g, tunables) => {
      if (!('products' in tunables)) return undefined;
      const { products, productTokens, tileTokens } = tunables;
      if (products === 1) return tileTokens === 8 ? unfitForProducts(g) : 'tileTokens is for products 0';
      return productTokens === 64 ? undefined : 'productTokens is for products 1';
    },
  ],
  kernels: (g, tunables, target) => {
    const multiplies = 'products' in tunables && tunables.products === 1;
    // Tunables are tried before it is known that the scheme fits.
    const schedule =
      multiplies && unfitForProducts(g) === undefined
        ? latentProducts(g, tunables.productTokens)
        : plainSchedule(g, tunables.tileTokens, target);
    return attendPlans(g, schedule, target);
  },
});

/** Decodes tiles of tokens, which all threads take as keys and then as values, in float32. */
function plainSchedule(g: LatentGeometry, tileTokens: number, target: Target): AttendSchedule {
  const { headsPerBlock, latentDim, headDim } = g;
  const threads = Math.min(256, Math.ceil(latentDim / 32) * 32);
  /** Scores come as vectors of four tokens. */
  const scoreVectors = (headsPerBlock * tileTokens) / 4;
  const slices = Math.min(scoreSlicesLimit, Math.max(1, Math.floor(threads / scoreVectors)));
  const words = { tile: headDim * tileTokens, scores: slices * scoreVectors * 4, heads: headsPerBlock };
  // CUDA keeps the query beside the tile, a word more a head to spread heads over the banks; one word says who finishes a row.
  const query = target.language === 'cuda' ? headsPerBlock * (headDim / 2 + 1) + 1 : 0;
  return {
    threads,
    constants: { TILE_TOKENS: tileTokens, SCORE_SLICES: slices },
    sharedBytes: { fixed: (words.tile + words.scores + words.heads + query) * 4, dynamic: 0 },
    template: 'latent_attend',
  };
}

function attendPlans(
  g: LatentGeometry,
  { constants, ...schedule }: AttendSchedule,
  target: Target,
): readonly KernelPlan[] {
  const { headsPerBlock, latentDim, heads } = g;
  const cuda = target.language === 'cuda';
  const blocks = heads / headsPerBlock;
  const work = reads(
    'work',
    'u32',
    `[work items][sequence, block of ${headsPerBlock} heads, query row, tokens after the query, split, splits]; splits of a row are neighbours`,
  );
  const partials = `[work items][${headsPerBlock} query heads][${latentDim} output, maximum, weight sum]`;
  const output = writes('output', 'f32', `[query rows][${heads} heads][${latentDim}]`);
  const attend: KernelPlan = {
    entry: 'attend',
    summary: `One work item a block: ${headsPerBlock} query heads over their share of the tokens that a query sees.`,
    bindings: [
      reads('sequences', 'u32', 'records of all sequences'),
      work,
      cacheRead,
      reads('query', 'u32', `f16 [query rows][${heads} heads][${latentDim} for the latent, ${g.rotaryDim} after RoPE]`),
      tables,
      writes('partials', 'f32', partials),
      ...(cuda
        ? [output, writes('counters', 'atomic_u32', `[query rows][${blocks} blocks of heads], zero before and after`)]
        : []),
    ],
    ...schedule,
    grid: [{ dimension: 'workItems' }, 1, 1],
    constants: {
      ...constants,
      WORK_ITEM_WORDS: workItemWords,
      PARTIAL_WORDS: latentPartialWords(g),
      CHUNK_UNIT: 16,
      ...scoreConstants(g),
    },
    functions: latentReadFunctions(g),
  };
  if (cuda) return [attend];
  return [
    attend,
    {
      entry: 'attend_merge',
      summary: 'Merges the splits of a row; a second launch, because WGSL orders no memory between workgroups of one.',
      bindings: [work, reads('partials', 'f32', partials), output],
      threads: schedule.threads,
      grid: [{ dimension: 'workItems' }, 1, 1],
      constants: { WORK_ITEM_WORDS: workItemWords, PARTIAL_WORDS: latentPartialWords(g) },
      functions: {},
      sharedBytes: { fixed: 0, dynamic: 0 },
      template: 'latent_merge',
    },
  ];
}
