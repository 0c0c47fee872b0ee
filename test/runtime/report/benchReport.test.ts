import { describe, expect, test } from 'vitest';
import { benchDocument } from '../../../runtime/bench/schema.js';
import { buildBenchReport } from '../../../runtime/report/benchReport.js';
import { documentWith } from '../bench/document.js';

describe('the report of a bench', () => {
  test('has figures and figures of speech for what was measured, and fetches nothing', async () => {
    const html = await buildBenchReport(documentWith(), [
      { series: 'attend 1x8192', seconds: 1, us: 40 },
      { series: 'attend 1x8192', seconds: 2, us: 30 },
    ]);
    const titles = [...html.matchAll(/<h2>([^<]*)<\/h2>/g)].map(([, title]) => title);
    expect(titles).toEqual([
      'Attention',
      'Against cuDNN',
      'Against the fp16 kernel of kvforge',
      'Roofline',
      'How the tuner got on',
    ]);
    expect(html.match(/<svg /g)).toHaveLength(4);
    expect(html).toContain('<b>1.55x</b><span>best ratio to cuDNN: shard, 16x8192</span>');
    expect(html).toContain(
      '<td>shard<small>4 splits</small></td><td>16x8192</td><td>80.0<small>spread 0.1</small></td>',
    );
    expect(html).toContain(
      'kvforge 0.1.0, commit 0123456789ab. kvforge bench shard. cuDNN: torch 2.11.0, cuDNN 91900, CUDA 13.0.',
    );
    expect(html).not.toMatch(/<script|<link|<img|@import|src=|url\((?!#)/);
    const addresses = html.match(/https?:\/\/[^"' )]+/g) ?? [];
    expect([...new Set(addresses)].sort()).toEqual(['http://www.w3.org/1999/xlink', 'http://www.w3.org/2000/svg']);
    const roles = new Set([...html.matchAll(/var\((--\w+)\)/g)].map(([, role]) => role!));
    for (const role of roles) expect(html.split(`${role}: #`).length).toBe(3);
  });

  test('says which rates are of inputs in a cache, and heads itself with no ratio of an encode', async () => {
    const { rows } = documentWith();
    const [row] = rows;
    const encode = { ...row!, stage: 'encode' as const, ratio: 9, ratioFp16: null, ratioCudnn: null };
    const html = await buildBenchReport(documentWith({ rows: [{ ...row!, cold: false }, encode] }));
    expect(html).toContain('<td>625<small>warm</small></td>');
    expect(html).toContain('<b>1.55x</b><span>best ratio to cuDNN: shard, 16x8192</span>');
    expect(html).not.toContain('<b>9.00x</b>');
    expect(await buildBenchReport(documentWith())).not.toContain('<small>warm</small>');
  });

  test('plots nothing that was wrong', async () => {
    const rows = documentWith().rows.map((row) => ({
      ...row,
      correct: false,
      ratio: null,
      ratioFp16: null,
      ratioCudnn: null,
    }));
    const html = await buildBenchReport(documentWith({ rows }));
    expect([...html.matchAll(/<h2>([^<]*)<\/h2>/g)].map(([, title]) => title)).toEqual(['Attention']);
    expect(html).toContain('<b>3</b><span>of them wrong</span>');
  });

  test('escapes hostile names wherever they come from', async () => {
    const evil = `<script>alert("1")</script>'&`;
    const skip = { scheme: evil, stage: 'attend' as const, shape: evil, reason: evil };
    const origin = { kvforge: evil, command: evil, model: evil, device: evil, driver: evil };
    const document = documentWith({ ...origin, cudnn: { missing: evil }, skipped: [skip] }, evil);
    const html = await buildBenchReport(document, [{ series: evil, seconds: 1, us: 2 }]);
    expect(html).not.toMatch(/<script/i);
    // Title and headline, lead twice, footer three times, a skip three times, a fact, a row; and the legends.
    expect(html.split('&lt;script&gt;').length - 1).toBeGreaterThanOrEqual(12);
    expect(html.match(/<svg /g)).toHaveLength(4);
  });

  test('of a run without a baseline says why, and has no figure of ratios', async () => {
    const { rows } = documentWith();
    const [row] = rows;
    const alone = { ...row!, ratio: null, ratioFp16: null, ratioCudnn: null, operations: null, intensity: null };
    const skip = { scheme: 'fp16', stage: 'attend' as const, shape: '16x8192', reason: 'no room' };
    const document = documentWith({
      rows: [alone],
      cudnn: { missing: 'no CUDA device' },
      skipped: [skip],
      commit: null,
    });
    const html = await buildBenchReport(document);
    expect([...html.matchAll(/<h2>([^<]*)<\/h2>/g)].map(([, title]) => title)).toEqual(['Attention', 'Not measured']);
    expect(html).toContain('fp16<small>no room</small>');
    expect(html).toContain('cuDNN: no CUDA device.');
    expect(html).not.toContain('best ratio');
  });
});

describe('the form of a document', () => {
  test.each([
    ['another version', { format: 1 }],
    ['a field that it does not know', { more: 1 }],
    ['a time that is no number', { ms: Number.NaN }],
    ['a device of no kind', { kind: 'tpu' }],
    ['half a commit', { commit: { hash: 'abc', modified: false } }],
  ])('refuses %s', (_, change) => {
    expect(benchDocument.safeParse({ ...documentWith(), ...change }).success).toBe(false);
  });

  test('survives being written', () => {
    const document = documentWith();
    expect(benchDocument.parse(JSON.parse(JSON.stringify(document)))).toEqual(document);
  });
});
