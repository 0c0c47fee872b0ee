import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { createReadStream, createWriteStream, existsSync, readFileSync } from 'node:fs';
import { mkdtemp, rename, rm } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { Readable, Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { setTimeout as sleep } from 'node:timers/promises';
import { createBrotliDecompress } from 'node:zlib';
import { cacheFolder } from '../../runtime/cacheFolder.js';
import { Devtools } from './devtools.js';

/**
 * Headless Chromium with WebGPU on SwiftShader, from the development dependency `@sparticuz/chromium`. The package
 * carries the browser, SwiftShader, and the few libraries (NSS, expat) that a bare machine lacks: nothing else is needed.
 */

const flags = [
  '--headless',
  '--no-sandbox',
  '--remote-debugging-pipe',
  '--enable-unsafe-webgpu',
  '--use-webgpu-adapter=swiftshader',
  // As in runtime/webgpu/dawn.ts: else SwiftShader unrolls the clearing of workgroup memory, ten seconds a kernel.
  '--disable-dawn-features=use_vulkan_zero_initialize_workgroup_memory_extension',
  // A container's /dev/shm may hold 64 MB.
  '--disable-dev-shm-usage',
  '--no-first-run',
];

interface TarFs {
  extract(folder: string, options: { chown: boolean }): NodeJS.WritableStream;
}

/** Unpacks the package once, beside the drivers that the package itself unpacks; the folder with the browser. */
async function unpack(): Promise<string> {
  if (process.platform !== 'linux' || process.arch !== 'x64') {
    throw new Error(`@sparticuz/chromium is packaged for linux-x64 only, this is ${process.platform}-${process.arch}`);
  }
  // The package's own require, so that its tar-fs is found in any layout of node_modules.
  const require = createRequire(createRequire(import.meta.url).resolve('@sparticuz/chromium'));
  let root = dirname(require.resolve('@sparticuz/chromium'));
  while (!existsSync(join(root, 'bin'))) root = dirname(root);
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
  const target = join(await cacheFolder(['chromium']), version);
  if (existsSync(target)) return target;
  const { extract } = require('tar-fs') as TarFs;
  const packed = (name: string) => createReadStream(join(root, 'bin', name));
  // A temporary name and a rename: two processes that start together never see half a browser.
  const folder = await mkdtemp(`${target}.`);
  try {
    await pipeline(
      packed('chromium.br'),
      createBrotliDecompress(),
      createWriteStream(join(folder, 'chromium'), { mode: 0o700 }),
    );
    // Chromium looks for SwiftShader beside itself; al2023 is named after the system whose libraries these are.
    for (const name of ['swiftshader.tar.br', 'al2023.tar.br']) {
      await pipeline(packed(name), createBrotliDecompress(), extract(folder, { chown: false }));
    }
    await rename(folder, target).catch((error: unknown) => {
      if (!existsSync(target)) throw error;
    });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return target;
}

/** A browser of this process. */
export interface Chromium {
  readonly version: string;
  /** Opens a page and waits for `expression` in it, which may be a promise; what that gives, as JSON. */
  evaluate(url: string, expression: string): Promise<unknown>;
  close(): Promise<void>;
}

/**
 * Starts a browser.
 *
 * @throws Error that says why none can be started on this machine
 */
export async function startChromium(): Promise<Chromium> {
  const folder = await unpack();
  const profile = await mkdtemp(join(tmpdir(), 'kvforge-chromium-'));
  const env = { PATH: process.env.PATH, HOME: profile, LD_LIBRARY_PATH: join(folder, 'lib') };
  const child = spawn(join(folder, 'chromium'), [...flags, `--user-data-dir=${profile}`, 'about:blank'], {
    env,
    stdio: ['ignore', 'ignore', 'pipe', 'pipe', 'pipe'],
  });
  const [, , errors, input, output] = child.stdio as unknown as [null, null, Readable, Writable, Readable];
  let said = '';
  errors.setEncoding('utf8').on('data', (text: string) => {
    said = `${said}${text}`.slice(-2000);
  });
  const devtools = new Devtools(input, output);
  child.on('error', (error) => devtools.fail(error));
  child.on('exit', (code, signal) => devtools.fail(new Error(`Chromium ended (${code ?? signal}): ${said.trim()}`)));
  const close = () => shutDown(child, devtools, profile);
  try {
    const { product } = (await devtools.send('Browser.getVersion')) as { product: string };
    return { version: product, close, evaluate: (url, expression) => evaluate(devtools, url, expression) };
  } catch (error) {
    await close();
    throw error;
  }
}

async function evaluate(devtools: Devtools, url: string, expression: string): Promise<unknown> {
  const { targetId } = (await devtools.send('Target.createTarget', { url: 'about:blank' })) as { targetId: string };
  const { sessionId } = (await devtools.send('Target.attachToTarget', { targetId, flatten: true })) as {
    sessionId: string;
  };
  await devtools.send('Page.navigate', { url }, sessionId);
  // Until the page's own script has run there is nothing to wait for.
  for (let tries = 0; tries < 1200; tries++) {
    const found = await run(
      devtools,
      sessionId,
      `document.readyState === 'complete' && location.href !== 'about:blank'`,
    );
    if (found === true) break;
    await sleep(25);
  }
  return run(devtools, sessionId, expression);
}

async function run(devtools: Devtools, sessionId: string, expression: string): Promise<unknown> {
  // The last one: else the page's policy would not hold for what runs meanwhile.
  const options = { awaitPromise: true, returnByValue: true, allowUnsafeEvalBlockedByCSP: false };
  const { result, exceptionDetails } = (await devtools.send(
    'Runtime.evaluate',
    { expression, ...options },
    sessionId,
  )) as {
    result: { value?: unknown };
    exceptionDetails?: { text: string; exception?: { description?: string } };
  };
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
}

async function shutDown(child: ChildProcess, devtools: Devtools, profile: string): Promise<void> {
  if (child.pid !== undefined && child.exitCode === null && child.signalCode === null) {
    const exited = once(child, 'exit');
    devtools.send('Browser.close').catch(() => {});
    const timer = setTimeout(() => child.kill('SIGKILL'), 5000);
    await exited;
    clearTimeout(timer);
  }
  await rm(profile, { recursive: true, force: true, maxRetries: 5 });
}
