import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import {
  evictedWord,
  layoutSequence,
  type PlacedPart,
  recordEntries,
  type SequenceLayout,
} from '../../codegen/plan/layout.js';
import { geometryOf } from '../../dsl/geometry.js';
import { presetModel, shard } from '../../dsl/index.js';
import { presets } from '../../dsl/schemes/presets.js';
import { evictionBlocks } from '../../runtime/cache/evictable.js';
import { keptLengths, planKeep } from '../../runtime/cache/keep.js';
import { readRecord, writeRecord } from '../../runtime/record.js';
import { seededRandom } from '../../runtime/reference/index.js';

const part = (name: string, rows: PlacedPart['rows'], wordsPerRow: number, tokensPerRow?: number) => ({
  ...{ name, rows, wordsPerRow, dtype: 'U32', holds: '' },
  ...(tokensPerRow === undefined ? {} : { tokensPerRow }),
});

/** Rows of a word, of many, and of so many that a run of a few rows is several moves. */
const parts = [
  part('sinkKeys', 'sinks', 3),
  part('keyCodes', 'middle', 900),
  part('keyScales', 'middle', 5, 4),
  part('valueScales', 'middle', 1, 2),
  part('codebook', 'sequence', 7),
  part('streamKeyCodes', 'stream', 31),
  part('windowKeys', 'window', 2),
] as const;

const draws = fc.record({
  sinkTokens: fc.nat(3),
  middleTokens: fc.nat(40),
  streamTokens: fc.nat(20),
  windowTokens: fc.nat(3),
  base: fc.nat(50),
  share: fc.constantFrom(0, 0.1, 0.5, 0.9, 1),
  seed: fc.nat(0xffff),
});

test('closes the gaps of every part and touches nothing else', () => {
  fc.assert(
    fc.property(draws, ({ base, share, seed, ...held }) => {
      const capacity = { sinks: 3, middle: 40, stream: 20, window: 3 };
      let offset = 0;
      const placed = parts.map((each) => {
        const { rows, wordsPerRow } = each;
        const tokensPerRow = 'tokensPerRow' in each ? (each.tokensPerRow as number) : 1;
        const bytes =
          (rows === 'sequence' ? 1 : Math.ceil(capacity[rows as keyof typeof capacity] / tokensPerRow)) *
          wordsPerRow *
          4;
        offset += bytes;
        return { ...each, offset: offset - bytes, bytes } as PlacedPart;
      });
      const layout: SequenceLayout = { capacity, parts: placed, bytes: offset };
      const lengths = { ...held, windowStart: 0, promptTokens: 0 };
      const random = seededRandom(seed);
      const { sinkTokens, middleTokens, streamTokens } = held;
      const blocks = Array.from({ length: Math.ceil(middleTokens / 4) }, () => random() < share);
      const middle = Array.from({ length: middleTokens }, (_, token) => token).filter((t) => blocks[Math.floor(t / 4)]);
      const stream = Array.from({ length: streamTokens }, (_, token) => token).filter(() => random() < share);
      const kept = [...middle, ...stream.map((token) => middleTokens + token)].map((token) => sinkTokens + token);

      const before = Uint32Array.from({ length: base + offset / 4 + 3 }, (_, at) => at * 2654435761);
      const { gather, restore, words } = planKeep(layout, lengths, { kept, base });
      const cache = before.slice();
      const scratch = new Uint32Array(words);
      for (const [from, to, count] of gather) scratch.set(cache.subarray(from!, from! + count!), to);
      for (const [from, to, count] of restore) cache.set(scratch.subarray(from!, from! + count!), to);
      for (const [, , count] of [...gather, ...restore]) expect(count).toBeLessThanOrEqual(4096);

      const wanted = before.slice();
      for (const { rows, offset: start, wordsPerRow, tokensPerRow = 1 } of placed) {
        const tokens = rows === 'middle' ? middle : rows === 'stream' ? stream : [];
        for (const [at, row] of [...new Set(tokens.map((token) => Math.floor(token / tokensPerRow)))].entries()) {
          const place = (index: number) => base + start / 4 + index * wordsPerRow;
          wanted.set(before.subarray(place(row), place(row + 1)), place(at));
        }
      }
      // Rows that are used no more hold anything.
      for (const { rows, offset: start, bytes, wordsPerRow, tokensPerRow = 1 } of placed) {
        const used = rows === 'middle' ? middle.length : rows === 'stream' ? stream.length : capacity.window + 1;
        const end = base + start / 4 + Math.min(bytes / 4, Math.ceil(used / tokensPerRow) * wordsPerRow);
        const held = (from: Uint32Array) => from.slice(base + start / 4, end);
        expect(held(cache)).toEqual(held(wanted));
      }
      expect(cache.slice(0, base)).toEqual(before.slice(0, base));
      expect(cache.slice(-3)).toEqual(before.slice(-3));
    }),
    { numRuns: 100 },
  );
});

test('counts what is evicted, and what is left of the prompt', () => {
  const held = { sinkTokens: 2, middleTokens: 4, streamTokens: 3, windowTokens: 4, windowStart: 1 };
  // Of 8 tokens of the prompt, two have left the window for the stream.
  const lengths = { ...held, promptTokens: 8, evictedTokens: 5 };
  expect(keptLengths(lengths, [3, 6, 8])).toEqual({
    ...held,
    middleTokens: 1,
    streamTokens: 2,
    promptTokens: 4,
    evictedTokens: 9,
  });
  // All of the stream is of the prompt, and some of the window.
  expect(keptLengths({ ...lengths, promptTokens: 11 }, [])).toMatchObject({ promptTokens: 4, evictedTokens: 12 });
  expect(keptLengths({ ...lengths, promptTokens: 2 }, [2])).toMatchObject({ promptTokens: 2 });
});

test('presets that docs/policies.md gives blocks of tokens, and no others, share rows of the middle', async () => {
  const units = new Map<string, number>();
  for (const [name, preset] of Object.entries(presets)) {
    const model = presetModel(name.startsWith('latent') ? 'deepseek-v2-lite' : 'llama-3.1-8b');
    const geometry = geometryOf(await preset(), model);
    const lengths = {
      sinkTokens: 0,
      middleTokens: 1000,
      streamTokens: 0,
      windowTokens: 0,
      windowStart: 0,
      promptTokens: 0,
    };
    units.set(name, evictionBlocks(geometry, lengths)[0]!.end);
  }
  const whole = ['shard', 'shard-plus', 'tilt-fast', 'tilt-safe', 'kvquant2', 'kvquant3', 'kvquant4'];
  expect(Object.fromEntries([...units].filter(([, unit]) => unit > 1))).toEqual({
    ...{ kivi2: 32, kivi4: 32, 'kivi-k4v2': 32, polarquant3: 128, polarquant4: 128 },
    ...Object.fromEntries(whole.map((name) => [name, 1000])),
  });
  const documented = readFileSync(packagePath('docs', 'policies.md'), 'utf8');
  expect(documented).toContain('| a scale for 32 tokens (KIVI), or for 128 (PolarQuant) | in blocks of so many,');
});

test('the count of evicted tokens has a word of the record that no field or part of any preset has', async () => {
  for (const [name, preset] of Object.entries(presets)) {
    const model = presetModel(name.startsWith('latent') ? 'deepseek-v2-lite' : 'smollm2-135m');
    const words = recordEntries(geometryOf(await preset(), model)).map(({ word }) => word);
    expect(Math.max(...words), name).toBeLessThan(evictedWord);
  }
  const layout = layoutSequence(geometryOf(shard, presetModel('smollm2-135m')), { tokens: 100, generated: 0 });
  const lengths = { sinkTokens: 4, middleTokens: 1, streamTokens: 0, windowTokens: 2, windowStart: 0, promptTokens: 7 };
  expect(readRecord(writeRecord(layout, 0, { ...lengths, evictedTokens: 9 }))).toMatchObject({ evictedTokens: 9 });
  expect(readRecord(writeRecord(layout, 0, lengths))).toMatchObject({ evictedTokens: 0 });
});
