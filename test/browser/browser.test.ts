import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { defaultTargets, generate as generateInNode, manifestText } from '../../codegen/generate.js';
import { packagePath } from '../../codegen/packageRoot.js';
import { presetModel as nodePreset, shard as nodeShard } from '../../dsl/index.js';
import { presentGoldens } from '../../scripts/goldenFiles.js';
import { type Bundle, bundle } from './bundle.js';
import { type Chromium, startChromium } from './chromium.js';
import type { PageResult } from './page.js';

const folder = mkdtempSync(join(tmpdir(), 'kvforge-browser-'));
const skips: string[] = [];
afterAll(() => {
  rmSync(folder, { recursive: true, force: true });
  console.info(`Browser: ${skips.length} tests skipped${skips.map((why) => `\n  ${why}`).join('')}`);
});

describe('the bundle of kvforge/browser', () => {
  let made: Bundle;
  beforeAll(async () => {
    made = await bundle('runtime/browser.ts');
  });

  test('holds no compiler, no module of Node and no code made from text', () => {
    const packages = new Set(made.modules.flatMap((name) => /node_modules\/([^/]+)/.exec(name)?.[1] ?? []));
    console.info(
      `kvforge/browser: ${(made.text.length / 1024).toFixed(0)} KiB minified, ${(gzipSync(made.text).length / 1024).toFixed(0)} KiB gzipped, of ${made.modules.length} modules; packages ${[...packages].join(', ')}`,
    );
    expect([...packages].filter((name) => /ts-morph|typescript|webgpu|sparticuz|fast-check|vega/.test(name))).toEqual(
      [],
    );
    expect(made.modules.filter((name) => /codegen\/lower|packageRoot|dawn|swiftshader|emulator/.test(name))).toEqual(
      [],
    );
    expect(made.text).not.toMatch(/["'`]node:/);
    // Globals of Node need no import.
    const own = made.modules.filter((name) => /^(dsl|codegen|runtime)\//.test(name));
    expect(own.length).toBeGreaterThan(40);
    const global = /(?<!\.)\b(?:Buffer|process|__dirname)\b\s*[.(]/;
    expect(own.filter((name) => global.test(readFileSync(packagePath(name), 'utf8')))).toEqual([]);
    expect(made.text).not.toMatch(/ts-morph|createSourceFile/);
    // handlebars' compiler would be the one to use it; zod asks once whether it may, and does without.
    expect(made.modules.filter((name) => /handlebars.*compiler/.test(name))).toEqual([]);
    // With `import * as z from 'zod'` in place of `import * as z` a bundler keeps all of zod, and its 40 languages: 350 KiB.
    expect(made.text.length).toBeLessThan(1000 * 1024);
  });

  test('generates in any engine what Node wrote to generated/, byte for byte', async () => {
    const file = join(folder, 'browser.mjs');
    writeFileSync(file, made.text);
    const { generate, presetModel, shard, shardPlus } = (await import(
      file
    )) as typeof import('../../runtime/browser.js');
    const present = await presentGoldens();
    for (const scheme of [shard, shardPlus]) {
      for (const model of ['smollm2-135m', 'llama-3.1-8b'] as const) {
        const { files, manifest } = await generate(scheme, presetModel(model));
        const texts = { ...Object.fromEntries(files), 'manifest.json': manifestText(manifest) };
        expectGoldens(present, `${scheme.name}/${model}`, texts);
      }
    }
    for (const change of [{ f16: true }, { subgroups: true }, { f16: true, subgroups: true }]) {
      const target = { ...defaultTargets.wgsl, ...change };
      const own = await generateInNode(nodeShard, nodePreset('smollm2-135m'), target);
      const bundled = await generate(shard, presetModel('smollm2-135m'), target);
      expect([...bundled.files]).toEqual([...own.files]);
      expect(manifestText(bundled.manifest)).toBe(manifestText(own.manifest));
    }
  });

  test('generates uncompressed attention too, as Node does', async () => {
    const file = join(folder, 'browserFp16.mjs');
    writeFileSync(file, made.text);
    const { generateFp16, presetModel } = (await import(file)) as typeof import('../../runtime/browser.js');
    const present = await presentGoldens();
    for (const model of ['smollm2-135m', 'llama-3.1-8b'] as const) {
      const { files, manifest } = await generateFp16(presetModel(model));
      const texts = { ...Object.fromEntries(files), 'manifest.json': manifestText(manifest) };
      expectGoldens(present, `fp16/${model}`, texts);
    }
    await expect(generateFp16(presetModel('smollm2-135m'), defaultTargets.cuda)).rejects.toThrow(
      'target.language: expected wgsl in a browser, got cuda. Generate these kernels in Node.',
    );
  });

  test('is what package.json exports for it', () => {
    const { exports } = JSON.parse(readFileSync(packagePath('package.json'), 'utf8')) as {
      exports: Record<string, { default: string }>;
    };
    expect(exports['./browser']!.default).toBe('./dist/runtime/browser.js');
  });
});

/** Compares WGSL kernels and their manifest with those that are checked in for a scheme and a model, `shard/phi-3-mini`. */
function expectGoldens(
  present: ReadonlyMap<string, string>,
  combination: string,
  texts: Readonly<Record<string, string>>,
): void {
  const folder = `${combination}/wgsl/`;
  const wanted = [...present].filter(([name]) => name.startsWith(folder));
  expect(Object.keys(texts).sort()).toEqual(wanted.map(([name]) => name.slice(folder.length)).sort());
  const differing = wanted.filter(([name, text]) => texts[name.slice(folder.length)] !== text);
  // After a change that is meant: npm run build && npm run goldens -- --update.
  expect(differing.map(([name]) => name)).toEqual([]);
}

/** A page whose policy allows its own script and nothing else: no inline code, no `eval`. */
function serve(script: string): Promise<Server> {
  const server = createServer(({ url }, response) => {
    response.setHeader('content-security-policy', "default-src 'none'; script-src 'self'");
    if (url === '/') {
      response.setHeader('content-type', 'text/html');
      response.end('<!doctype html><title>kvforge</title><script type="module" src="/page.js"></script>');
    } else if (url === '/page.js') {
      response.setHeader('content-type', 'text/javascript');
      response.end(script);
    } else {
      response.writeHead(404).end();
    }
  });
  return new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(server)));
}

describe('in Node', () => {
  test('a set of kernels is generated within 30 ms, without ts-morph', async () => {
    for (const model of ['smollm2-135m', 'llama-3.1-8b'] as const) {
      const ms: number[] = [];
      // More than 20 only where other work of the machine got in between.
      while (ms.length < 20 || (ms.length < 200 && Math.min(...ms) >= 30)) {
        const start = performance.now();
        await generateInNode(nodeShard, nodePreset(model), defaultTargets.wgsl);
        ms.push(performance.now() - start);
      }
      const best = Math.min(...ms);
      console.info(`${model}, WGSL in Node: first ${ms[0]!.toFixed(1)} ms, best of ${ms.length} ${best.toFixed(1)} ms`);
      expect(best).toBeLessThan(30);
    }
  });
});

describe('in headless Chromium', () => {
  let chromium: Chromium | undefined;
  let server: Server | undefined;
  let why = '';
  let result: PageResult;

  beforeAll(async () => {
    try {
      chromium = await startChromium();
    } catch (error) {
      // Set where a browser is known to be: there its absence is a failure.
      if (process.env.KVFORGE_REQUIRE_CHROMIUM !== undefined) throw error;
      why = `no Chromium: ${error instanceof Error ? error.message : String(error)}`;
      return;
    }
    server = await serve((await bundle('test/browser/page.ts')).text);
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
    result = (await chromium.evaluate(url, 'globalThis.result')) as PageResult;
    const best = Object.entries(result.generateMs).map(
      ([model, [first, ...rest]]) => `${model} first ${first!.toFixed(1)} ms, best ${Math.min(...rest).toFixed(1)} ms`,
    );
    console.info(
      `${chromium.version}, ${result.description}: kernels generated in ${best.join('; ')}; compiled in ${result.compileMs.toFixed(0)} ms, judged in ${result.judgeMs.toFixed(0)} ms; error ${result.conversation.error.toExponential(1)}, of ${result.verified.cases} drawn cases ${result.verified.maxError.toExponential(1)}; the compression loses ${result.conversation.lost.toPrecision(2)}`,
    );
  });
  afterAll(async () => {
    await chromium?.close();
    server?.closeAllConnections();
    server?.close();
  });

  const inBrowser = (name: string, body: () => void | Promise<void>) =>
    test(name, async (context) => {
      if (chromium === undefined) {
        skips.push(`${name}: ${why}`);
        context.skip(why);
      }
      await body();
    });

  inBrowser('a prompt, appended tokens and attention agree with the float64 reference', () => {
    expect(result.description).toMatch(/swiftshader.*\(software\)$/);
    const { error, lost, middleTokens, streamTokens } = result.conversation;
    expect([middleTokens, streamTokens]).toEqual([32, 3]);
    expect(error).toBeGreaterThan(0);
    expect(error).toBeLessThan(1e-5);
    // Of the numbers themselves, not of the codes: noise compresses badly, but a third of the tokens is coded at all.
    expect(lost).toBeLessThan(0.1);
  });

  inBrowser('drawn cases pass, as `kvforge verify` draws them in Node', () => {
    expect(result.verified.failures).toEqual([]);
    expect(result.verified.maxError).toBeGreaterThan(0);
  });

  inBrowser('a kernel that is wrong by a thousandth is found', () => {
    expect(result.spoiltError).toBeGreaterThan(1e-5);
  });

  inBrowser('kernels generated in the page are those that Node wrote to generated/, byte for byte', async () => {
    const present = await presentGoldens();
    const models = ['smollm2-135m', 'llama-3.1-8b'];
    const combinations = ['shard', 'shard-plus'].flatMap((scheme) => models.map((model) => `${scheme}/${model}`));
    expect(Object.keys(result.texts).sort()).toEqual(combinations.sort());
    for (const [combination, texts] of Object.entries(result.texts)) expectGoldens(present, combination, texts);
  });

  inBrowser('a set of kernels is generated within 30 ms', () => {
    for (const ms of Object.values(result.generateMs)) expect(Math.min(...ms)).toBeLessThan(30);
  });

  inBrowser('the page needs no eval, which its policy forbids', () => {
    expect(result.evaluation).toBe('EvalError');
  });

  inBrowser('what only Node can do is refused', () => {
    expect(result.refusals).toEqual({
      cuda: 'missing-capability: target.language: expected wgsl in a browser, got cuda. Generate these kernels in Node.',
      source:
        'missing-capability: stream.source: expected a codec of built-in device functions in a browser, got https://example.org/my-codec.ts. Generate its kernels in Node, where that file can be lowered.',
    });
  });
});
