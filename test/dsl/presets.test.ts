import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { resolveScheme } from '../../cli/resolve.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { halfPrecisionBytes, layoutSequence, type PartRows, partsOf } from '../../codegen/plan/layout.js';
import type { Geometry, KvforgeError, Scheme } from '../../dsl/index.js';
import * as api from '../../dsl/index.js';
import { isLatent, isScalar, quantizerOf } from '../../dsl/scheme.js';
import { schemeNames } from '../../dsl/schemes/presets.js';

const llama = api.presetModel('llama-3.1-8b');
const presets = await Promise.all(schemeNames.map((name) => resolveScheme(name, llama)));

function isScheme(value: unknown): value is Scheme {
  return typeof value === 'object' && value !== null && 'stream' in value;
}

describe('the presets', () => {
  const files = readdirSync(packagePath('dsl', 'schemes')).filter((file) => !['index.ts', 'presets.ts'].includes(file));

  it.each(files)('are short: %s', (file) => {
    const lines = readFileSync(packagePath('dsl', 'schemes', file), 'utf8')
      .trimEnd()
      .split('\n');
    expect(lines.length).toBeLessThanOrEqual(25);
  });

  it('are what the package exports, under the names that commands take', () => {
    expect(presets.map(({ name }) => name)).toEqual(schemeNames);
    const exported = Object.values<unknown>(api).filter(isScheme);
    expect(new Set(exported)).toEqual(new Set(presets));
    expect(exported.length).toBe(presets.length);
  });

  it('take their own bits for generated tokens, and their own codec where it has no offset', () => {
    for (const scheme of presets.filter(isScalar)) {
      const [keys, values] = [quantizerOf(scheme.keys).codec, quantizerOf(scheme.values).codec];
      expect(scheme.stream.bits, scheme.name).toBe(Math.max(keys.bits, values.bits));
      expect(scheme.stream.name, scheme.name).toBe(keys.device.offset ? 'lloydMax' : keys.name);
    }
  });

  it('fit every model of theirs, with latents or without, but for blocks of 64 channels, and projections, in heads of 96', () => {
    const refused = presets.flatMap((scheme) =>
      api.presetNames.flatMap((model) => {
        if (isLatent(scheme) !== (api.presetModel(model).latent !== undefined)) return [];
        try {
          api.geometryOf(scheme, api.presetModel(model));
          return [];
        } catch (error) {
          return [`${scheme.name} for ${model}: ${(error as KvforgeError).message}`];
        }
      }),
    );
    expect(refused).toEqual([
      'turboquant-prod4 for phi-3-mini: keys[2]: expected a head dimension that is a power of two from 32 on, got 96. One transform projects a whole head; take the keys of turboquant4.',
      "nf4 for phi-3-mini: keys[0].block.channels: expected a number that divides the head dimension 96, or 'head', got 64. Scales do not cross heads.",
    ]);
  });
});

describe('the table of docs/schemes.md', () => {
  const rows = readFileSync(packagePath('docs', 'schemes.md'), 'utf8')
    .split('\n')
    .filter((line) => line.startsWith('| `'))
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );

  /** Bytes of a row of each part that has so many rows, for one token. */
  const bytesOf = (g: Geometry, rows: PartRows) =>
    partsOf(g)
      .filter((part) => part.rows === rows || (rows === 'middle' && part.rows === 'tiles'))
      .reduce((sum, { wordsPerRow, tokensPerRow = 1 }) => sum + (wordsPerRow * 4) / tokensPerRow, 0);

  it('has every preset, in the order of the commands', () => {
    expect(rows.map(([name]) => name)).toEqual(schemeNames.map((name) => `\`${name}\``));
  });

  it.each(presets.map((scheme, i) => ({ name: scheme.name, scheme, row: rows[i] ?? [] })))(
    'states what the layout of $name takes',
    ({ scheme, row }) => {
      const g: Geometry = api.geometryOf(scheme, isLatent(scheme) ? api.presetModel('deepseek-v3') : llama);
      const coded = bytesOf(g, 'middle');
      const whole = layoutSequence(g, { tokens: 8192, generated: 0 }).bytes;
      expect(row.slice(-5)).toEqual([
        `${Number(((coded * 8) / ((isLatent(scheme) ? 1 : 2) * g.width)).toFixed(3))}`,
        `${coded}`,
        `${bytesOf(g, 'sequence')}`,
        `${bytesOf(g, 'stream')}`,
        (halfPrecisionBytes(g, 8192) / whole).toFixed(2),
      ]);
    },
  );
});
