import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { packagePath } from '../../codegen/packageRoot.js';
import { schemeNames } from '../../dsl/schemes/presets.js';
import { temporaryFolder } from '../cli/support.js';

const folders = [packagePath('test', 'bench', 'standInModel'), packagePath('bench', 'quality')];

/** Runs Python with the modules of bench/quality, the stand-in of the model before its own. */
function python(program: string, args: readonly string[] = [], cwd = temporaryFolder()) {
  const text = `import sys\nsys.dont_write_bytecode = True\nsys.path[:0] = ${JSON.stringify(folders)}\n${program}`;
  const { status, stdout, stderr } = spawnSync('python3', ['-c', text, ...args], { cwd, encoding: 'utf8' });
  return { code: status, out: stdout, err: stderr };
}

function evaluated(expression: string, modules: string): unknown {
  const { code, out, err } = python(`import json\nimport ${modules}\nprint(json.dumps(${expression}))`);
  expect(err).toBe('');
  expect(code).toBe(0);
  return JSON.parse(out);
}

const faultOf = (expression: string, modules: string) =>
  python(`import ${modules}\ntry:\n  ${expression}\nexcept ValueError as error:\n  print(error)`).out.trim();

/** A model folder, two texts, and how to evaluate them. */
function evaluation() {
  const cwd = temporaryFolder();
  const log = join(cwd, 'calls');
  mkdirSync(join(cwd, 'model'));
  writeFileSync(join(cwd, 'model', 'config.json'), '{}');
  writeFileSync(join(cwd, 'model', 'model.safetensors'), 'weights');
  writeFileSync(join(cwd, 'one.txt'), 'abcdefghijklm');
  writeFileSync(join(cwd, 'two.txt'), 'nopqrstuvwxyz');
  writeFileSync(log, '');
  const fake = [process.execPath, packagePath('test', 'bench', 'fakeKvforge.mjs'), log].map((part) => `'${part}'`);
  const sizes = ['--prefix=6', '--tokens=3', '--copy-from=2', '--copy-tokens=2'];
  const run = (schemes: string, ...more: readonly string[]) =>
    python(
      'import run\ntry:\n  sys.exit(run.main(sys.argv[1:]))\nexcept ValueError as error:\n  sys.exit(str(error))',
      [
        ...['--model', 'model', '--out', 'out', '--schemes', schemes, '--text', 'one.txt', '--text', 'two.txt@1'],
        ...['--kvforge', fake.join(' '), ...sizes, ...more],
      ],
      cwd,
    );
  const calls = () => readFileSync(log, 'utf8').split('\n').slice(0, -1);
  const file = (...path: readonly string[]) => readFileSync(join(cwd, 'out', ...path), 'utf8');
  return { cwd, run, calls, file };
}

describe('an evaluation', () => {
  test('gives perplexities of all texts and bytes, exact numbers first', () => {
    const { run, calls, file } = evaluation();
    const { code, out, err } = run('fp16,kivi2,shard');
    expect({ code, err: err.split('\n').length }).toEqual({ code: 0, err: 7 });
    expect(calls()).toEqual(['kivi2', 'shard', 'kivi2', 'shard'].map((name) => `reconstruct ${name} exact 6 emulator`));
    // Losses: the next tokens begin with g = 103 and u = 117, the copied ones with c = 99 and q = 113.
    const next = (103 + 117) / 2000 + 0.3;
    const copied = (99 + 113) / 2000 + 0.2;
    const row = (name: string, sizes: string, more: number) =>
      `| ${name} | ${sizes} | ${Math.exp(next + more).toFixed(3)} | ${Math.exp(copied + more).toFixed(3)} |`;
    expect(out.split('\n')).toEqual([
      '| scheme | bits a number | bytes | times smaller | perplexity | copy perplexity |',
      '|---|---|---|---|---|---|',
      row('fp16', '16.00 | 192 | 1.00', 0),
      row('shard', '4.00 | 100 | 4.00', 0.25),
      row('kivi2', '2.00 | 50 | 8.00', 1),
      '',
    ]);
    expect(file('quality.md')).toBe(out);
    expect(file('quality.svg')).toMatch(/^<svg .*>shard<.*<\/svg>\n$/s);
    expect(JSON.parse(file('quality.json'))[2]).toMatchObject({ scheme: 'kivi2', texts: 2, bits: 2, ratio: 8 });
  });

  test('that was interrupted measures only what is missing', () => {
    const { run, calls } = evaluation();
    run('fp16,shard', '--text', 'one.txt@4');
    expect(calls()).toHaveLength(3);
    const { code, out } = run('fp16,shard,kivi2');
    expect(code).toBe(0);
    expect(calls().slice(3)).toEqual(['kivi2', 'kivi2'].map((name) => `reconstruct ${name} exact 6 emulator`));
    expect(out).toContain('| kivi2 | 2.00 |');
    expect(run('fp16,shard,kivi2').out).toBe(out);
    expect(calls()).toHaveLength(5);
  });

  test('goes on after a scheme that cannot be measured, and says why', () => {
    const { run } = evaluation();
    const { code, out, err } = run('fp16,refused,killed,shard');
    expect(code).toBe(1);
    expect(err.split('\n').filter((line) => !line.endsWith('}'))).toEqual([
      'one.txt@0, refused: keys: expected a smaller rank, got 99',
      'one.txt@0, killed: kvforge ended with exit code -9',
      'two.txt@1, refused: keys: expected a smaller rank, got 99',
      'two.txt@1, killed: kvforge ended with exit code -9',
      '',
    ]);
    expect(out).toMatch(/\| fp16 .*\n\| shard .*\n$/);
  });

  test('measures the scheme of a file again once the file has changed', () => {
    const { cwd, run, calls } = evaluation();
    writeFileSync(join(cwd, 'own.ts'), 'one');
    expect(run('own.ts').out).toContain('| own | 2.00 |');
    run('own.ts');
    expect(calls()).toHaveLength(2);
    writeFileSync(join(cwd, 'own.ts'), 'another');
    run('own.ts');
    expect(calls()).toHaveLength(4);
  });

  test('gives a calibration to the schemes that take one, and keeps its results apart', () => {
    const { cwd, run, calls } = evaluation();
    writeFileSync(join(cwd, 'one.calibration'), 'first');
    writeFileSync(join(cwd, 'other.calibration'), 'second');
    const first = run('fp16,shard,tilt-fast', '--calibration', 'one.calibration');
    expect(first.code).toBe(0);
    const each = ['reconstruct shard exact 6 emulator', 'reconstruct tilt-fast exact 6 emulator by first'];
    expect(calls()).toEqual([...each, ...each]);
    // The same again measures nothing; other results do not belong into the folder.
    expect(run('fp16,shard,tilt-fast', '--calibration', 'one.calibration').out).toBe(first.out);
    const digest = (text: string) => createHash('sha256').update(text).digest('hex');
    const refusal = (expected: string) =>
      `out: expected results with calibration ${expected}, got "${digest('first')}"; choose another folder with --out\n`;
    expect(run('tilt-fast', '--calibration', 'other.calibration').err).toBe(refusal(`"${digest('second')}"`));
    expect(run('tilt-fast').err).toBe(refusal('null'));
    expect(calls()).toHaveLength(4);
  });

  test('does not mix results of other settings', () => {
    const { run } = evaluation();
    run('fp16');
    expect(run('fp16', '--prefix=5').err).toBe(
      'out: expected results with prefix 5, got 6; choose another folder with --out\n',
    );
  });
});

test('a row that lacks texts says so', () => {
  const row =
    '{"scheme": "kivi2", "texts": TEXTS, "bits": 2, "bytes": 5000, "ratio": 8, "perplexity": 9, "copyPerplexity": 3}';
  const rows = [1, 2].map((texts) => row.replace('TEXTS', String(texts))).join(', ');
  const text = String(evaluated(`kept.table([${rows}], 2)`, 'kept'));
  expect(text.split('\n').slice(2)).toEqual([
    '| kivi2 (1 of 2 texts) | 2.00 | 5,000 | 8.00 | 9.000 | 3.000 |',
    '| kivi2 | 2.00 | 5,000 | 8.00 | 9.000 | 3.000 |',
    '',
  ]);
});

test('the presets are those of kvforge', () => {
  expect(evaluated('run.presets()', 'run')).toEqual(schemeNames);
});

describe('texts', () => {
  test('are there without any file: the language reference of Python', () => {
    const lengths = evaluated(
      '[len(texts.read_source(texts.parse_text(name).source)) for name in texts.USUAL]',
      'texts',
    );
    expect(Math.min(...(lengths as number[]))).toBeGreaterThan(300_000);
  });

  test('that are none are refused', () => {
    expect(faultOf('texts.parse_text("no/such.txt@3")', 'texts')).toMatchInlineSnapshot(
      `"text no/such.txt@3: expected python-docs or a file, got 'no/such.txt', which is none"`,
    );
    expect(faultOf('texts.parse_text("python-docs@-3")', 'texts')).toMatchInlineSnapshot(
      `"text python-docs@-3: expected a number of tokens after @, got '-3'"`,
    );
    const short = 'texts.stretch([1, 2, 3], texts.Text("short@2", "short", 2), 2)';
    expect(faultOf(short, 'texts')).toMatchInlineSnapshot(`"text short@2: expected at least 4 tokens in short, got 3"`);
    expect(evaluated('texts.stretch([1, 2, 3], texts.Text("short@1", "short", 1), 2)', 'texts')).toEqual([2, 3]);
  });
});

describe('the plot', () => {
  const row = (scheme: string, bits: number, perplexity: number) =>
    `{"scheme": "${scheme}", "bits": ${bits}, "perplexity": ${perplexity}, "copyPerplexity": 2}`;

  test('keeps labels that would cover one another apart, upwards', () => {
    // The third is beside the others, and the fourth far below.
    const labels = '[(0, 100, 50), (10, 98, 50), (70, 99, 20), (0, 200, 50), (40, 90, 30)]';
    expect(evaluated(`plot.label_heights(${labels})`, 'plot')).toEqual([100, 86, 99, 200, 72]);
  });

  test('puts every scheme but fp16 where it is, in both panels', () => {
    const rows = [row('fp16', 16, 8), row('a<b', 8, 8.08), row('c', 2, 8.8), row('d', 4, 7.9)];
    const svg = String(evaluated(`plot.plot([${rows.join(', ')}])`, 'plot'));
    expect(svg.match(/>a&lt;b</g)).toHaveLength(2);
    expect(svg).not.toContain('>fp16<');
    expect(svg).toContain('>perplexity above 8.000 of fp16<');
    const circles = [...svg.matchAll(/<circle cx="([\d.]+)" cy="([\d.]+)"/g)].map(([, x, y]) => [Number(x), Number(y)]);
    expect(circles).toHaveLength(6);
    const [[eightX, oneY], [twoX, tenY], [fourX, noneY]] = circles as [
      [number, number],
      [number, number],
      [number, number],
    ];
    // One per cent above is half-way between a tenth, where what is below fp16 lies too, and ten.
    expect((tenY + noneY) / 2).toBeCloseTo(oneY, 0);
    expect((twoX + eightX) / 2).toBeCloseTo(fourX, 0);
    expect(noneY).toBeGreaterThan(tenY);
    expect(eightX).toBeGreaterThan(twoX);
  });

  test('is none without fp16, or with it alone', () => {
    for (const rows of [row('shard', 2, 9), row('fp16', 16, 8)])
      expect(evaluated(`plot.plot([${rows}])`, 'plot')).toBe(null);
  });
});
