import fc from 'fast-check';
import type { LatentGeometry } from '../../dsl/latentGeometry.js';
import type { QueryDraw } from './caseDraws.js';
import { type Kind, kinds } from './draws.js';

/** Sequences of latents that hold prompts or codes of random content, the tokens appended to them, and a query. */
export interface LatentDraw {
  /** Prompts go through `prefill`; codes are written as they are. */
  readonly start: 'prompts' | 'codes';
  /** Tokens before the window of each sequence where the start is codes, else those of its prompt; 0 for none. */
  readonly tokens: readonly number[];
  /** Where the start is codes: tokens of the stream, of the window, and the slot of its oldest one. */
  readonly stream: number;
  readonly window: number;
  readonly windowStart: number;
  /** What codes are multiplied with, beside their own scales. */
  readonly magnitude: number;
  readonly appended: number;
  readonly kind: Kind;
  readonly seed: number;
  readonly query: QueryDraw;
}

/** Cases of a geometry of latents; `query` as for any other. */
export function latentDraws({ scheme }: LatentGeometry, query: fc.Arbitrary<QueryDraw>): fc.Arbitrary<LatentDraw> {
  const { sinks, window } = scheme;
  const exact = sinks + window;
  const near = (edge: number) => [edge - 1, edge, edge + 1].filter((tokens) => tokens >= 0);
  const tokens = fc.oneof(
    fc.constantFrom(0, ...near(sinks), ...near(exact)),
    fc.integer({ min: exact, max: exact + 40 }),
  );
  return fc.record({
    start: fc.constantFrom('prompts' as const, 'codes' as const),
    tokens: fc.array(tokens, { minLength: 1, maxLength: 2 }),
    stream: fc.constantFrom(0, 1, 7, 8, 9, 17),
    window: fc.oneof(fc.constant(window), fc.integer({ min: 0, max: window })),
    windowStart: fc.integer({ min: 0, max: window - 1 }),
    magnitude: fc.constantFrom(0.01, 1, 100),
    appended: fc.integer({ min: 0, max: 5 }),
    kind: fc.constantFrom(...kinds),
    seed: fc.nat({ max: 0xffff }),
    query,
  });
}
