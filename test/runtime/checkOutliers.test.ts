import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { layoutSequence, type PartName, splitPrompt } from '../../codegen/plan/layout.js';
import { geometryOf } from '../../dsl/geometry.js';
import { encodeScalar } from '../../runtime/reference/index.js';
import { unpackShare } from '../../runtime/reference/unpackShare.js';
import { checkScalar } from '../../runtime/verify/checkScalar.js';
import { codeValues } from '../../runtime/verify/codeValues.js';
import { halfBits, type Kind, kinds, numbers } from '../../runtime/verify/draws.js';
import { Judge } from '../../runtime/verify/judge.js';
import { packParts } from '../../runtime/verify/packParts.js';
import { type OutlierCase, outlierCases } from '../stages/outlierCases.js';
import { codingOfScheme, tensorOf } from './outlierCoding.js';

const tokens = 50;

/** A share as float64 encodes it, and the judge of that share or another. */
function encoded({ scheme, model }: OutlierCase, kind: Kind) {
  const g = geometryOf(scheme, model);
  const drawn = (seed: number) => tensorOf(g, halfBits(numbers({ kind, seed }, g.kvHeads * tokens, g.headDim)));
  const prompt = { keys: drawn(1), values: drawn(2) };
  const parts = encodeScalar(prompt, model, codingOfScheme(g));
  const layout = layoutSequence(g, { tokens, generated: 0 });
  const share = new Uint8Array(layout.bytes);
  packParts(g, layout, { ...parts, windowStart: 0 }, share);
  const { sinks, middle, window } = splitPrompt(g, tokens);
  const lengths = {
    sinkTokens: sinks,
    middleTokens: middle,
    streamTokens: 0,
    windowTokens: window,
    windowStart: 0,
    promptTokens: tokens,
  };
  const at = (name: PartName) => layout.parts.find((part) => part.name === name)!.offset;
  /** What the judge says of the share after a change of words of a part. */
  const judged = (change: (words: Uint32Array) => void = () => {}, part: PartName = 'keyOutliers') => {
    const changed = share.slice();
    change(new Uint32Array(changed.buffer, at(part)));
    const judge = new Judge();
    const held = unpackShare(g, layout, changed, lengths, codeValues(g));
    checkScalar(g, { parts: held, layout, share: changed }, prompt, judge);
    return judge.failures.map(({ what }) => what);
  };
  return { g, parts, judged, middle };
}

const entry = (channel: number, residual: number) => channel + halfBits([residual])[0]! * 0x10000;

describe.each(outlierCases)('outliers of $name', (own) => {
  test.each(kinds)('of the kind "%s" pass as float64 keeps them', (kind) => {
    expect(encoded(own, kind).judged()).toEqual([]);
  });

  const { g, parts, judged, middle } = encoded(own, 'normal');
  const { outliers } = parts.middle.keys;
  const { cap } = outliers!;
  const used = [...outliers!.residuals.keys()].filter((i) => outliers!.residuals[i] !== 0);
  // Of a residual near zero, steps of float16 are less than what float32 may lose.
  const vector = fc.constantFrom(...used.filter((i) => Math.abs(outliers!.residuals[i]!) > 0.02));

  test('are there, and more than there is room for', () => {
    expect(used.length).toBeGreaterThan(middle / 4);
    if (cap < 8) expect(parts.middle.clamped!.keys).toBeGreaterThan(0);
  });

  test('fail where one is missing, of another channel, or a step of float16 and more off', () => {
    fc.assert(
      fc.property(vector, fc.integer({ min: 1, max: g.headDim - 1 }), (i, away) => {
        const place = `KV head ${Math.floor(i / cap) % g.kvHeads}, middle token ${Math.floor(i / cap / g.kvHeads)}`;
        const channel = outliers!.channels[i]!;
        const other = (channel + away) % g.headDim;
        const missing = judged((words) => {
          words[i] = 0;
        });
        expect(missing.join()).toContain(`keys: outlier`);
        const moved = judged((words) => {
          words[i] = entry(other, outliers!.residuals[i]!);
        });
        expect(moved.join()).toContain(place);
        const off = judged((words) => {
          words[i] = words[i]! + 3 * 0x10000;
        });
        expect(off.join()).toContain(`keys: residual of an outlier: ${place}, channel ${channel}`);
      }),
      { numRuns: 12 },
    );
  });

  test('fail where an inner number is kept, or one twice', () => {
    const i = used.find((at) => at % cap === 0)!;
    const [channel, residual] = [outliers!.channels[i]!, outliers!.residuals[i]!];
    const all = parts.middle.keys.outliers!.channels.subarray(i, i + cap);
    const inner = Array.from({ length: g.headDim }, (_, c) => c).find((c) => c > 0 && !all.includes(c))!;
    const [told] = judged((words) => {
      words[i] = entry(inner, residual);
    });
    expect(told).toMatch(/^keys: (kept beside the codes|residual of an outlier)/);
    if (cap < 2) return;
    const twice = judged((words) => {
      words[i + 1] = entry(channel, residual);
    });
    expect(twice.join()).toContain('keys: kept beside the codes without being an outlier, or twice: KV head');
  });

  test('fail where a smaller one comes first', () => {
    const i = used.find((at) => at % cap === 1);
    if (i === undefined) return;
    const told = judged((words) => {
      [words[i - 1], words[i]] = [words[i]!, words[i - 1]!];
    });
    const size = (at: number) => Math.abs(outliers!.residuals[at]!);
    expect(size(i)).toBeLessThan(size(i - 1));
    expect(told.join()).toContain('keys: outlier after a smaller one: KV head');
  });

  test.each([
    ['keys', 0],
    ['values', 1],
  ] as const)('fail where one more of the %s is counted', (name, word) => {
    if (g[name].outlierCap === 0) return;
    const counted = parts.middle.clamped![name];
    const told = judged((words) => {
      words[word] = counted + 40;
    }, 'outlierCounts');
    expect(told[0]).toMatch(
      new RegExp(`^${name}: outliers past the cap: ${counted + 40} counted, \\d+ to \\d+ there$`),
    );
  });
});

test('a range that leaves out one number too few or too many fails', () => {
  const [own] = outlierCases;
  const { g } = encoded(own!, 'normal');
  for (const trim of [0, 1000]) {
    const { sinks, window } = own!.scheme;
    const coding = codingOfScheme(g);
    const drawn = (seed: number) =>
      tensorOf(g, halfBits(numbers({ kind: 'normal', seed }, g.kvHeads * tokens, g.headDim)));
    const prompt = { keys: drawn(1), values: drawn(2) };
    const keys = { ...coding.keys, rule: { ...coding.keys.rule, trim } };
    const parts = encodeScalar(prompt, own!.model, { ...coding, keys, sinks, window });
    const layout = layoutSequence(g, { tokens, generated: 0 });
    const share = new Uint8Array(layout.bytes);
    packParts(g, layout, { ...parts, windowStart: 0 }, share);
    const judge = new Judge();
    checkScalar(g, { parts, layout, share }, prompt, judge);
    expect(judge.failures[0]?.what).toMatch(/^keys: offset, in f16 steps: KV head/);
  }
});
