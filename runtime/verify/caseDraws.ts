import fc from 'fast-check';
import type { Geometry, ScalarGeometry } from '../../dsl/geometry.js';
import { trimUnits } from '../../dsl/scheme.js';
import { seededRandom } from '../reference/index.js';
import { type AttendDraw, attendDraws, blockEdges, tileEdges } from './attendDraws.js';
import { type Kind, kinds } from './draws.js';
import { type LatentDraw, latentDraws } from './latentDraws.js';

/** How a cache is attended after it was written. */
export interface QueryDraw {
  readonly queries: number;
  readonly splits: number;
  readonly reach: number;
  readonly aligned: boolean;
}

/** Tokens appended to sequences that are empty, hold a prompt, or hold drawn codes. */
export interface AppendDraw {
  readonly start: 'empty' | 'prompt' | 'codes';
  /** Prompt tokens by sequence, where the start is a prompt. */
  readonly prompts: readonly number[];
  /** One sequence, where the start is codes. */
  readonly codes: AttendDraw;
  readonly appended: number;
  readonly kind: Kind;
  readonly seed: number;
  readonly query: QueryDraw;
}

export interface PrefillDraw {
  readonly tokens: number;
  readonly keys: Kind;
  readonly values: Kind;
  readonly seed: number;
  readonly query: QueryDraw;
}

export type CaseDraw =
  | { readonly kind: 'attend' | 'decompress'; readonly draw: AttendDraw }
  | { readonly kind: 'append'; readonly draw: AppendDraw }
  | { readonly kind: 'prefill'; readonly draw: PrefillDraw }
  | { readonly kind: 'latent'; readonly draw: LatentDraw };

/** Above this width a software device takes minutes to fit a basis to a prompt. */
export const wideWidth = 256;
/** Whether prefills are too long to be made as often as other cases. */
export function fitsSlowly(g: Geometry): boolean {
  return g.family === 'low-rank' && g.width > wideWidth;
}

const longestFill = 160;

/**
 * The case of a seed, and of nothing else.
 *
 */
export function drawCase(g: Geometry, seed: number): CaseDraw {
  // Neighbouring seeds give a small generator neighbouring numbers, so they are mixed first.
  const mixed = Math.floor(seededRandom(seed)() * 2 ** 32) | 0;
  return fc.sample(caseDraws(g), { numRuns: 1, seed: mixed })[0]!;
}

function caseDraws(g: Geometry): fc.Arbitrary<CaseDraw> {
  if (g.family === 'latent') return latentDraws(g, queryDraws()).map((draw) => ({ kind: 'latent', draw }));
  const wide = fitsSlowly(g);
  const of = <K extends CaseDraw['kind'], T>(kind: K, arbitrary: fc.Arbitrary<T>) =>
    arbitrary.map((draw) => ({ kind, draw }));
  const codes = attendDraws(g);
  return fc.oneof(
    { weight: wide ? 56 : 44, arbitrary: of('attend', codes) },
    { weight: 17, arbitrary: of('decompress', codes) },
    { weight: 25, arbitrary: of('append', appendDraws(g, wide)) },
    { weight: wide ? 2 : 14, arbitrary: of('prefill', prefillDraws(g)) },
  );
}

function queryDraws(): fc.Arbitrary<QueryDraw> {
  return fc.record({
    queries: fc.oneof({ weight: 3, arbitrary: fc.constant(1) }, { weight: 1, arbitrary: fc.constantFrom(2, 3) }),
    splits: fc.integer({ min: 1, max: 8 }),
    reach: fc.constantFrom(0, 0.01, 1, 10, 40),
    aligned: fc.boolean(),
  });
}

function appendDraws(g: Geometry, wide: boolean): fc.Arbitrary<AppendDraw> {
  const { sinks, window } = g.scheme;
  const fills = window <= longestFill;
  // A prefill costs as much as twenty other cases.
  const starts: fc.Arbitrary<AppendDraw['start']> = fc.oneof(
    { weight: 4, arbitrary: fc.constant('codes' as const) },
    { weight: 2, arbitrary: fc.constant('empty' as const) },
    { weight: wide ? 0 : 1, arbitrary: fc.constant('prompt' as const) },
  );
  const few = fc.integer({ min: 1, max: 6 });
  return starts.chain((start) =>
    fc.record({
      start: fc.constant(start),
      prompts: fc.array(
        fc.oneof(
          fc.constantFrom(1, sinks + 1, sinks + window - 1, sinks + window),
          fc.integer({ min: 1, max: sinks + window + 5 }),
        ),
        { minLength: 1, maxLength: 2 },
      ),
      codes: attendDraws(g).chain(({ sequences: [first], seed }) =>
        // A full window, mostly, so that tokens enter the stream.
        fc.oneof(fc.constant(window), fc.constant(window), fc.constant(first!.window)).map((tokens) => ({
          sequences: [{ ...first!, window: tokens }],
          queries: 1,
          seed,
        })),
      ),
      appended:
        start === 'empty' && fills
          ? fc.oneof(
              few,
              few.map((tokens) => window + tokens - 1),
            )
          : few,
      kind: fc.constantFrom(...kinds),
      seed: fc.nat({ max: 0xffff }),
      query: queryDraws(),
    }),
  );
}

/** Numbers of tokens about the fewest of which a range over the whole prompt leaves out one number, or two, at each end. */
function trimEdges({ keys, values }: ScalarGeometry): readonly number[] {
  return [keys, values].flatMap(({ trim, scaleTokens, scaleChannels }) => {
    if (trim === 0 || scaleTokens > 0) return [];
    // Half a number is rounded up, and the second is left out where three halves are.
    const first = Math.ceil(trimUnits / (2 * trim) / scaleChannels);
    return [first - 1, first, first + 1, 3 * first];
  });
}

function prefillDraws(g: Geometry): fc.Arbitrary<PrefillDraw> {
  const { sinks, window } = g.scheme;
  const exact = sinks + window;
  const blocks = g.family === 'scalar' ? blockEdges(g) : [];
  const tiles = g.family === 'tilt' ? tileEdges(g) : [];
  const trims = g.family === 'scalar' ? trimEdges(g) : [];
  const edges = [-1, 0, 1, 15, 16, 17, 31, 32, 33, 48, ...blocks, ...tiles, ...trims].map((middle) => exact + middle);
  return fc.record({
    tokens: fc.oneof(
      { weight: 1, arbitrary: fc.constantFrom(0, 1, sinks, ...edges.slice(0, 3)) },
      { weight: 2, arbitrary: fc.constantFrom(...edges.slice(2)) },
      { weight: 3, arbitrary: fc.integer({ min: exact, max: exact + 52 }) },
    ),
    keys: fc.constantFrom(...kinds),
    values: fc.constantFrom(...kinds),
    seed: fc.nat({ max: 0xffff }),
    query: queryDraws(),
  });
}
