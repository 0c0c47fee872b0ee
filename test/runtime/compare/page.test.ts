import { describe, expect, test } from 'vitest';
import { frontChart } from '../../../runtime/compare/chart.js';
import { buildComparePage } from '../../../runtime/compare/page.js';
import { drawChart } from '../../../runtime/report/svg.js';
import { comparisonWith, rowWith, rowWithout } from './document.js';

const titles = (html: string) => [...html.matchAll(/<h2>([^<]*)<\/h2>/g)].map(([, title]) => title);

describe('the page of a comparison', () => {
  test('has the table and the plot of the same rows, and fetches nothing', async () => {
    const html = await buildComparePage(comparisonWith());
    expect(titles(html)).toEqual(['Schemes', 'Bytes against attention error']);
    expect(html).toContain(
      '<td>small</td><td>*</td><td>100,000</td><td>48.8</td><td>15.73</td><td>20.00%</td><td>-7.00%</td><td>1.0e-4</td>',
    );
    expect(html).toContain('<td>beaten</td><td></td><td>500,000</td>');
    expect(html).toContain('<td>unfit<small>keys: expected less, got more</small></td><td></td><td></td>');
    expect(html).toContain('<b>2</b><span>on the front: small, large</span>');
    const svg = html.slice(html.indexOf('<svg'), html.indexOf('</svg>'));
    const labels = [...svg.matchAll(/<text [^>]*>(small|large|beaten|unfit)<\/text>/g)].map(([, text]) => text);
    expect(labels.sort()).toEqual(['beaten', 'large', 'small']);
    // The values of a point are in its description for those who do not see it.
    expect(svg).toContain('bytes a token and layer, 1x2048: 48.8281; attention error, %: 20');
    expect(html).toContain(
      'kvforge 0.1.0, commit 0123456789ab with changes. kvforge compare. No times: a CPU measures no GPU.',
    );
    expect(html).not.toMatch(/<script|<link|<img|@import|src=|url\((?!#)/);
    const addresses = html.match(/https?:\/\/[^"' )]+/g) ?? [];
    expect([...new Set(addresses)].sort()).toEqual(['http://www.w3.org/1999/xlink', 'http://www.w3.org/2000/svg']);
    const roles = new Set([...html.matchAll(/var\((--\w+)\)/g)].map(([, role]) => role!));
    for (const role of roles) expect(html.split(`${role}: #`).length).toBe(3);
  });

  test('has the times of what was timed, and those of fp16', async () => {
    const time = { spread: 0.1, maxError: 1e-4, errorBar: 2e-3, correct: true } as const;
    const times = [
      { ...time, stage: 'attend' as const, shape: '2x2048', us: 12.34 },
      { ...time, stage: 'encode' as const, shape: '1x2048', us: 456.78 },
    ];
    const fp16 = { bytes: 1, bytesPerToken: 768, times: [{ ...times[0]!, us: 20 }] };
    const html = await buildComparePage(
      comparisonWith({ untimed: null, shapes: ['2x2048'], fp16, rows: [rowWith('one', { times }), rowWith('other')] }),
    );
    expect(html).toContain('<th>decode 2x2048, us</th><th>encode 1x2048, us</th>');
    expect(html).toContain('<td>12.3</td><td>456.8</td>');
    expect(html).toContain('attention over fp16 takes 20.0 us for 2x2048.');
  });

  test('says what is wrong, and plots nothing of it', async () => {
    const wrong = { correct: false, kernelError: 0.5 };
    const html = await buildComparePage(
      comparisonWith({ rows: [rowWith('broken', wrong), rowWithout('unfit', 'no')], failed: ['broken'] }),
    );
    expect(titles(html)).toEqual(['Schemes']);
    expect(html).toContain('<td>broken<small>wrong: kernel error 5.0e-1, at most 2e-3 is right</small></td>');
    expect(html).toContain('<td>5.0e-1 WRONG</td>');
    expect(html).toContain('<b>1</b><span>failed a check</span>');
    expect(html).toContain('<span>on the front: none</span>');
  });

  test('escapes hostile names wherever they come from', async () => {
    const evil = `<script>alert("1")</script>'&`;
    const rows = [rowWith(evil, { notes: [evil] }), rowWithout(`${evil}2`, evil)];
    const html = await buildComparePage(
      comparisonWith({ model: evil, source: evil, command: evil, rows, device: evil }),
    );
    expect(html).not.toContain('<script');
  });
});

test('a chart with an error of nothing has a linear axis, on which it lies', async () => {
  const exact = { scheme: 'exact', bytesPerToken: 100, percent: 0, front: true };
  const svg = await drawChart('front', frontChart([exact], '1x64'));
  expect(svg).not.toContain('NaN');
  expect(svg).toContain('attention error, %: 0');
});
