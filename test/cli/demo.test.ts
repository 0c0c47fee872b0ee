import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { demo, type RunBackend } from '../../cli/demo.js';
import { reportError } from '../../cli/output.js';
import type { BackendResult } from '../../runtime/report/results.js';
import { cli, documentOf, errorOf, quietContext, temporaryFolder } from './support.js';

function ran(backend: string, maxError: number, layers: readonly number[]): BackendResult {
  const times = { encodeMs: 1000, attendMs: 10, referenceMs: 5, codesFrom: 'stub' };
  const errors = { maxError, attentionError: 0.14, attentionBias: -0.01, keysOnlyError: 0.12, valuesOnlyError: 0.08 };
  return {
    backend,
    status: 'ran',
    description: `a stub <of ${backend}>`,
    precision: 'f32',
    layers: layers.map((layer) => ({ layer, ...errors, ...times, bytes: 188416, fp16Bytes: 1572864 })),
    maxError,
    bar: 1e-5,
    generateMs: 1,
    compileMs: 1,
    ...times,
  };
}

const skipped = (backend: string): BackendResult => ({
  backend,
  status: 'skipped',
  reason: 'not here',
  hint: 'Get it.',
});

async function runDemo(results: Readonly<Record<string, BackendResult>>, out = join(temporaryFolder(), 'report.html')) {
  const run: RunBackend = async (name) => results[name]!;
  return demo(quietContext(), { out, layers: '27', backends: Object.keys(results).join(',') }, run);
}

describe('demo', () => {
  test('tells ratio and errors, and writes a report that fetches nothing', async () => {
    const out = join(temporaryFolder(), 'report.html');
    writeFileSync(out, 'the one before');
    const { code, json, text } = await runDemo(
      { emulator: ran('emulator', 1e-6, [27]), webgpu: skipped('webgpu') },
      out,
    );
    expect(code).toBe(0);
    expect(json).toMatchObject({
      model: 'smollm2-135m',
      layers: [27],
      report: out,
      skipped: 1,
      failed: [],
      schemes: [
        {
          scheme: 'shard',
          ratio: 1572864 / 188416,
          attentionError: 0.14,
          backends: [
            { backend: 'emulator', status: 'ran', maxError: 1e-6, ms: 1010, passed: true },
            { backend: 'webgpu', status: 'skipped', reason: 'not here', maxError: null, ms: null },
          ],
        },
      ],
    });
    expect(text).toContain('webgpu: not here. Get it.\n');
    const html = readFileSync(out, 'utf8');
    expect(html.match(/<svg /g)).toHaveLength(5);
    expect(html).toContain('webgpu: skipped<small>not here</small>');
    expect(html).toContain('a stub &lt;of emulator&gt;');
    expect(html).not.toMatch(/<script|<link|<img|@import|src=|url\((?!#)/);
    const addresses = html.match(/https?:\/\/[^"' )]+/g) ?? [];
    expect([...new Set(addresses)].sort()).toEqual(['http://www.w3.org/1999/xlink', 'http://www.w3.org/2000/svg']);
    // Every colour is a role that the style sheet defines for light and for dark.
    const roles = new Set([...html.matchAll(/var\((--\w+)\)/g)].map(([, role]) => role!));
    for (const role of roles) expect(html.split(`${role}: #`).length).toBe(3);
  });

  test('ends with 1 when a kernel is off, or gives NaN', async () => {
    const { code, json } = await runDemo({
      emulator: ran('emulator', 2e-5, [27]),
      webgpu: ran('webgpu', Number.NaN, [27]),
    });
    expect(code).toBe(1);
    expect(json).toMatchObject({ failed: ['emulator', 'webgpu'] });
  });

  test('ends with 3 when no backend is here', async () => {
    const fault = await runDemo({ emulator: skipped('emulator'), webgpu: skipped('webgpu') }).catch(reportError);
    expect(fault).toEqual({
      code: 'missing-capability',
      message: '--backends: expected one that runs here, got emulator: not here; webgpu: not here',
      hint: 'Run kvforge doctor.',
    });
  });

  test.each([
    [['--layers', '3'], '--layers: expected one of 2, 14, 27, got "3"'],
    [['--layers', ''], '--layers: expected one of 2, 14, 27, got ""'],
    [['--backends', 'cuda'], '--backends: expected one of emulator, webgpu, got "cuda"'],
  ])('refuses %j', async (args, message) => {
    const run = await cli('demo', ...args, '--json');
    expect(run.code).toBe(2);
    expect(errorOf(run)).toMatchObject({ code: 'wrong-use', message });
  });

  test('refuses a folder for the report', async () => {
    const folder = temporaryFolder();
    const fault = await runDemo({ emulator: ran('emulator', 1e-6, [27]) }, folder).catch(reportError);
    expect(fault).toMatchObject({
      code: 'wrong-use',
      message: `--out: expected a place to write ${folder}, got a folder`,
    });
  });

  test('holds the emulator to the reference on a recorded layer', async () => {
    const out = join(temporaryFolder(), 'report.html');
    const run = await cli('demo', '--backends', 'emulator', '--layers', '27', '--out', out, '--json');
    expect(run.code).toBe(0);
    const { schemes } = documentOf(run) as {
      schemes: { ratio: number; attentionError: number; backends: { maxError: number }[] }[];
    };
    expect(schemes[0]!.ratio.toFixed(2)).toBe('8.35');
    expect(schemes[0]!.attentionError).toBeLessThan(0.06);
    expect(schemes[0]!.backends[0]!.maxError).toBeLessThan(2e-3);
  });
});
