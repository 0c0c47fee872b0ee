import { spawnSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { cli, documentOf, errorOf, spawned } from './support.js';

describe('wrong use', () => {
  test('of an unknown command ends with 2, and says it on stderr', async () => {
    expect(await cli('generat')).toMatchInlineSnapshot(`
      {
        "code": 2,
        "err": "error: unknown command 'generat'
        Did you mean generate?
      ",
        "out": "",
      }
    `);
  });

  test('of an unknown command is one JSON document with --json', async () => {
    const run = await cli('--json', 'generat');
    expect(run.code).toBe(2);
    expect(run.err).toBe('');
    expect(errorOf(run)).toEqual({
      code: 'wrong-use',
      message: "unknown command 'generat'",
      hint: 'Did you mean generate?',
    });
  });

  test.each([
    [
      ['inspect', 'shard', '--model', 'smollm2-135m', '--tokens', '8', '--token', '9'],
      "unknown option '--token'",
      'Did you mean --tokens?',
    ],
    [
      ['inspect', 'shard', '--tokens', '8'],
      "required option '--model <model>' not specified",
      'See kvforge inspect --help.',
    ],
    [
      ['inspect', '--model', 'smollm2-135m', '--tokens', '8'],
      "missing required argument 'scheme'",
      'See kvforge inspect --help.',
    ],
    [
      ['inspect', 'shard', 'more', '--model', 'x', '--tokens', '8'],
      "too many arguments for 'inspect'. Expected 1 argument but got 2.",
      'See kvforge inspect --help.',
    ],
    [
      ['--json', 'tune', 'shard', '--device', 'cuda'],
      "required option '--model <model>' not specified",
      'See kvforge tune --help.',
    ],
    [[], 'no command', 'See kvforge --help.'],
  ])('%j', async (args, message, hint) => {
    const run = await cli(...args, '--json');
    expect(run.code).toBe(2);
    expect(errorOf(run)).toEqual({ code: 'wrong-use', message, hint });
  });
});

describe('help', () => {
  test('goes to stdout and names every command', async () => {
    const run = await cli('--help');
    expect(run.code).toBe(0);
    expect(run.err).toBe('');
    for (const name of [
      ...['bench', 'compare', 'demo', 'doctor', 'generate', 'inspect', 'mix', 'new', 'reconstruct', 'tune', 'verify'],
    ]) {
      expect(run.out).toContain(`\n  ${name} `);
    }
  });

  test('of a command names its options', async () => {
    const run = await cli('generate', '--help');
    expect(run.code).toBe(0);
    for (const name of [
      '--model',
      '--target',
      '--arch',
      '--plain',
      '--f16',
      '--subgroups',
      '--set',
      '--out',
      '--json',
    ]) {
      expect(run.out).toContain(name);
    }
  });

  test('is a JSON document with --json', async () => {
    const run = await cli('--help', '--json');
    expect(String(documentOf(run).help)).toContain('Usage: kvforge');
  });

  test('comes without loading what a command needs', async () => {
    const load = ['--import', 'tsx', '--input-type=module', '-e', ''];
    const start = performance.now();
    spawnSync(process.execPath, load);
    const empty = performance.now() - start;
    const from = performance.now();
    expect((await spawned(['--help'])).code).toBe(0);
    // From dist it takes 90 ms in all; other work may slow this machine down tenfold.
    expect(performance.now() - from - empty).toBeLessThan(1500);
  });
});
